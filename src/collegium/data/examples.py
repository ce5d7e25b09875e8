"""Loads an owner's examples (texts or pictures) in three splits, and the items of a public pool.

Named splits are used as they are; a missing one is carved out of the training examples (20 % test, 15 %
validation, stratified). A data set that cannot be learnt from (a class that is only in the test split, one
class alone) is refused here, with names, and not in the middle of training.
"""

from dataclasses import dataclass

from collegium.core.errors import DataError
from collegium.core.progress import say
from collegium.core.random_streams import stream
from collegium.core.recipe import Columns, DataSource, Limits
from collegium.data.read_table import missing_column
from collegium.data.rows import Examples, Table, check_rows, printable, sources_of
from collegium.data.sources import read_source
from collegium.data.split import SHARES, carve, drop_duplicates, sample

__all__ = ["Examples", "Splits", "load_splits", "load_texts", "load_unlabelled"]

SPLITS = ("train", "validation", "test")  # a text that stands in two splits stays in the earlier one


@dataclass(frozen=True)
class Splits:
    """An owner's examples; no text stands in two splits."""

    train: Examples
    validation: Examples
    test: Examples


def load_splits(data: DataSource, columns: Columns, limits: Limits, random_seed: int, name: str) -> Splits:
    """Load training, validation and test examples.

    Args:
        data: a catalogue name, a file, a folder, a hub name, or one of these for each split.
        columns: where text, label and choices stand; `label=None` loads texts alone. Folders of text files and the
            catalogue have no columns to choose.
        limits: most examples of each split; a stratified sample is drawn.
        name: the owner's name, the random stream of the splits.

    Raises:
        DataError: no such data, a missing column, faulty rows, an empty split, fewer than two classes, or a
            class that the training examples lack.
    """
    tables = _named_splits(read_source(data, columns), str(data))
    for part in tables.values():
        _require_labels(part, columns)
        _require_choices(part, columns)
    loaded = {split: check_rows(part, columns.label is not None) for split, part in tables.items()}
    missing = [split for split in SHARES if split not in loaded]
    if missing:
        loaded |= carve(loaded["train"], missing, stream(random_seed, "split", name))
    kept = drop_duplicates({split: loaded[split] for split in SPLITS})
    where = {split: sources_of(tables.get(split, tables["train"])) for split in SPLITS}
    for split, examples in kept.items():
        if dropped := len(loaded[split]) - len(examples):
            say(f"{name}: {dropped} duplicates of earlier splits left out of the {split} split")
        _require_examples(split, examples, where[split], carved=split in missing)
    _require_classes(kept, where, limits)
    drawn = {
        split: sample(examples, getattr(limits, split), stream(random_seed, "limit", name, split))
        for split, examples in kept.items()
    }
    return Splits(**drawn)


def load_texts(data: DataSource, columns: Columns, limit: int | None, random_seed: int) -> Examples:
    """Load the texts or pictures of a public pool, all splits together; labels only where every table has the column.

    Args:
        limit: most items; a sample is drawn by `random_seed`, stratified where there are labels. None = all.

    Raises:
        DataError: no such data, no text column, faulty rows.
    """
    tables = [table for part in read_source(data, columns).values() for table in part]
    with_labels = all(table.labels is not None for table in tables)
    return sample(check_rows(tables, with_labels), limit, stream(random_seed, "pool"))


def load_unlabelled(data: DataSource, columns: Columns) -> tuple[Examples, list[int | str]]:
    """Load items that are to be answered, with the place of each: its row, or the name of its file; with their
    choices where `columns` names them.

    Raises:
        DataError: no such data, no such column, faulty rows.
    """
    tables = [table for part in read_source(data, columns).values() for table in part]
    _require_choices(tables, columns)
    return check_rows(tables, with_labels=False), [place for table in tables for place in table.places]


def _named_splits(tables: dict[str, list[Table]], source: str) -> dict[str, list[Table]]:
    """The tables of the three splits; data without splits, or with one of another name alone, are `train`."""
    named = {split: tables[split] for split in SPLITS if split in tables}
    if not named and len(tables) == 1:
        return {"train": next(iter(tables.values()))}
    if "train" not in named:
        raise DataError(
            f"{source} has no training examples.",
            got="the splits " + ", ".join(tables),
            expected="a split train; validation and test are carved out of it where they are missing",
            do="name a source for each split in the recipe: data: {train: …, test: …}",
        )
    return named


def _require_labels(tables: list[Table], columns: Columns) -> None:
    for table in tables:
        if columns.label is not None and table.labels is None and len(table.texts) > len(table.faults):
            if table.columns:
                raise missing_column(table.source, "label", columns.label, table.columns)
            raise DataError(
                f"{table.source} holds texts without labels.",
                expected="one folder of text files for each class, or a file with a label column",
                do="give labels, or set columns.label=null to use texts alone",
            )


def _require_choices(tables: list[Table], columns: Columns) -> None:
    for table in tables:
        if columns.choices is not None and table.choices is None:
            raise DataError(
                f"{table.source} holds texts without choices.",
                expected="a file with columns",
                do="leave columns.choices out where class names compete",
            )


def _require_examples(split: str, examples: Examples, source: str, carved: bool) -> None:
    if len(examples):
        return
    if carved:
        raise DataError(
            f"{source} holds too few examples to carve a {split} split out of them.",
            expected="at least 3 different examples of a class",
            do="give more examples, or name a source for each split: data: {train: …, test: …}",
        )
    raise DataError(
        f"Nothing is left of the {split} split of {source}: all its texts stand in an earlier split as well.",
        do="give other examples; testing on what was learnt says nothing",
    )


def _require_classes(splits: dict[str, Examples], where: dict[str, str], limits: Limits) -> None:
    if splits["train"].labels is None or splits["train"].choices is not None:
        return
    known = set(splits["train"].labels)
    for split, examples in splits.items():
        unknown = sorted(set(examples.labels or []) - known)
        if unknown:
            raise DataError(
                f"{where[split]}: the {split} split has classes that no training example has.",
                got=", ".join(repr(printable(label)) for label in unknown),
                expected="the classes of the training examples: " + ", ".join(printable(x) for x in sorted(known)),
                do="add training examples of these classes, remove the classes, or correct their spelling",
            )
    if len(known) < 2:
        raise DataError(
            f"{where['train']}: the training examples have one class alone.",
            got=", ".join(repr(printable(label)) for label in known),
            expected="at least two classes",
            do="check the label column: columns.label=…",
        )
    if limits.train is not None and limits.train < len(known):
        raise DataError(
            "limits.train leaves some classes without any example.",
            got=limits.train,
            expected=f"at least {len(known)}, the number of classes",
            do="raise limits.train",
        )
