"""Finds out what a name in a recipe stands for: a named data set, a file, a folder, or a data set on the hub.

They are tried in that order (`./bbc` is always a path). Only a name of the form `owner/name` goes to the hub: a
misspelt name never costs a search in the network. It may say more, in this order:

    owner/name@revision          a branch, a tag or a commit, such as refs/convert/parquet
    owner/name:configuration     where the data set has several
    owner/name#split             one split alone, where another is not wanted (a test split with hidden labels)

Data sets that come as code are not run; `datasets` has none of that left, and we ask for none.
"""

import difflib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collegium.core.errors import DataError
from collegium.core.progress import say
from collegium.core.recipe import Columns, DataSource
from collegium.data.catalogue import CATALOGUE
from collegium.data.images import SUFFIXES as IMAGE_SUFFIXES
from collegium.data.read_folder import SPLIT_NAMES, UNSPLIT, read_folder
from collegium.data.read_pictures import read_picture_files, with_pictures
from collegium.data.read_table import READERS, make_table, read_table, require_columns, with_class_names
from collegium.data.rows import Table

HUB_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[\w.-]+)(@(?P<revision>[\w./-]+))?(:(?P<configuration>[\w.-]+))?(#(?P<split>[\w.-]+))?"
)


def read_source(data: DataSource, columns: Columns) -> dict[str, list[Table]]:
    """Tables by split; `UNSPLIT` stands for data without splits.

    A mapping names a source for each split. A source that has splits itself gives the one of that name.

    Raises:
        DataError: nothing has that name, or what has it cannot be read.
    """
    if isinstance(data, dict):
        return {split: _part(split, read_source(source, columns), source) for split, source in data.items()}
    path = Path(data).expanduser()
    if data in CATALOGUE:
        examples = CATALOGUE[data].load()
        rows = range(1, len(examples) + 1)
        labels = None if columns.label is None else examples.labels
        return {UNSPLIT: [Table(data, ["text", "label"], examples.texts, labels, rows)]}
    if path.is_dir():
        return read_folder(path, columns)
    if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
        return {UNSPLIT: [read_picture_files(path.parent, [path], None)]}
    if path.exists():
        return {UNSPLIT: [read_table(path, columns)]}
    hub_name = _hub_name(data)
    if hub_name is not None:
        return _read_hub(data, hub_name, columns)
    raise not_found(data)


def short_name(data: DataSource) -> str:
    """The data's name without the folders around it, or the hub's owner and revision."""
    if isinstance(data, dict):
        return ", ".join(short_name(part) for part in data.values())
    hub_name = _hub_name(data)
    return Path(data.replace(f"@{hub_name['revision']}", "") if hub_name and hub_name["revision"] else data).name


def not_found(name: str, got: str | None = None) -> DataError:
    """The error for a name that stands for nothing; `got` is what the hub answered, if it was asked."""
    close = difflib.get_close_matches(name, CATALOGUE, n=1)
    return DataError(
        f"There are no data called {name!r}: it is no named data set, and no file or folder has this path"
        + (", and the hub did not give it." if got else "."),
        got=got,
        expected=f"one of {', '.join(CATALOGUE)}, a path, or the name of a data set on the hub (owner/name)",
        do=(f"did you mean {close[0]}? " if close else "check the spelling; ") + "a hub name needs network access",
    )


def _hub_name(data: str) -> re.Match[str] | None:
    return None if Path(data).suffix.lower() in READERS else HUB_NAME.fullmatch(data)


def _part(split: str, tables: dict[str, list[Table]], source: str) -> list[Table]:
    if split in tables:
        return tables[split]
    if len(tables) == 1:
        return next(iter(tables.values()))
    raise DataError(f"{source} has no split {split!r}.", got=", ".join(tables), do="name another source for this split")


def _read_hub(name: str, parts: re.Match[str], columns: Columns) -> dict[str, list[Table]]:
    import datasets

    revision: dict[str, Any] = {} if parts["revision"] is None else {"revision": parts["revision"]}
    say(f"{name} is no local path: asking the hub")
    try:
        with _silenced(datasets):
            splits: Any = datasets.load_dataset(parts["repository"], parts["configuration"], **revision)
    except Exception as error:
        raise not_found(
            name, got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from None
    if parts["split"] is not None and parts["split"] not in splits:
        raise DataError(f"{name}: there is no such split.", got=parts["split"], expected=", ".join(map(str, splits)))
    tables: dict[str, list[Table]] = {}
    for split, dataset in splits.items():
        if parts["split"] not in (None, str(split)):
            continue
        tables.setdefault(SPLIT_NAMES.get(str(split), str(split)), []).append(
            _hub_table(f"{name} ({split})", dataset, columns)
        )
    return tables


def _hub_table(source: str, dataset: Any, columns: Columns) -> Table:
    names = list(dataset.column_names)
    require_columns(source, names, columns)

    def cells(column: str) -> list[object]:
        values = list(dataset[column])
        class_names = getattr(dataset.features[column], "names", None) if column == columns.label else None
        return with_class_names(values, class_names)

    table = make_table(source, names, cells, columns)
    return table if columns.image is None else with_pictures(table)


@contextmanager
def _silenced(datasets: Any) -> Iterator[None]:
    """No bars and no retry messages of other libraries inside the block; what was set before comes back."""
    bars_were_off = datasets.are_progress_bars_disabled()
    loggers = [logging.getLogger("datasets"), logging.getLogger("huggingface_hub")]
    levels = [logger.level for logger in loggers]
    datasets.disable_progress_bars()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if not bars_were_off:
            datasets.enable_progress_bars()
