"""Reads the columns of items, labels and choices of one file: JSON Lines, JSON, CSV, TSV, Parquet, text.

`datasets.load_dataset` reads these formats too, but it copies the rows into a cache outside their owner's
folder, turns numbers into strings without a word, and its errors name no row. So local files are read here:
nothing is copied, nothing is coerced, a faulty row keeps its number, and there is no network. Hub data goes
through `datasets` (sources.py).
"""

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collegium.core.errors import DataError
from collegium.core.recipe import Columns
from collegium.data.read_pictures import with_pictures
from collegium.data.rows import Table, printable

UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
NOT_A_RECORD = "the record is no JSON object"


def read_table(path: Path, columns: Columns) -> Table:
    """Read one file. Rows that cannot be read become faults of the table.

    Args:
        columns: which columns hold the text or picture, the label and the choices. A text file has no columns: each
            line that is not blank is one text without a label.

    Raises:
        DataError: another format, an unreadable file, no text column, no column of choices.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path} is of a kind that is not read.",
            got=path.suffix or "no suffix",
            expected=", ".join(READERS),
        )
    try:
        table = reader(path, columns)
    except OSError as error:
        raise DataError(f"{path} cannot be read.", got=error.strerror, do="check the path and its rights") from None
    return table if columns.image is None else with_pictures(table, path.parent)


def pick_columns(
    source: str, records: Sequence[dict[str, Any] | None], faults: dict[int, str], columns: Columns
) -> Table:
    """The table of records that may lack keys; a record that is None must stand in `faults`."""
    names = list(dict.fromkeys(name for record in records if record is not None for name in record))
    rows = [record or {} for record in records]
    if rows and not faults.keys() >= set(range(len(rows))):
        require_columns(source, names, columns)
    return make_table(source, names, lambda column: [row.get(column) for row in rows], columns, faults)


def make_table(
    source: str,
    names: Sequence[str],
    cells: Callable[[str], list[object]],
    columns: Columns,
    faults: dict[int, str] | None = None,
) -> Table:
    """The table of the columns that are asked for.

    Args:
        names: all columns that are there.
        cells: the cells of a column, one a row.
    """
    items = [cells(column) for column in columns.items]
    texts = items[0] if len(items) == 1 else [_joined(row) for row in zip(*items, strict=True)]
    labels = None if columns.label is None or columns.label not in names else cells(columns.label)
    choices = None
    if columns.choices is not None:
        answers = [cells(column) for column in columns.answers]
        choices = answers[0] if isinstance(columns.choices, str) else [list(row) for row in zip(*answers, strict=True)]
    rows = range(1, len(texts) + 1)
    return Table(source, list(names), texts, labels, rows, faults or {}, choices, columns.first_choice)


def require_columns(source: str, names: Sequence[str], columns: Columns) -> None:
    """Raise a DataError unless the columns of texts (or pictures) and of choices are among `names`."""
    wanted = [("text" if columns.image is None else "image", column) for column in columns.items]
    for key, column in [*wanted, *(("choices", column) for column in columns.answers)]:
        if column not in names:
            raise missing_column(source, key, column, names)


def missing_column(source: str, key: str, column: str, names: Sequence[str]) -> DataError:
    """The error for a column of the recipe that `source` does not have."""
    return DataError(
        f"{source} has no column {column!r} for the {key}.",
        got="the columns " + ", ".join(printable(name) for name in names) if names else "no columns",
        expected=f"a column {column!r}",
        do=f"name the right one in the recipe: columns.{key}=…" + (" (null = no labels)" if key == "label" else ""),
    )


def _read_json_lines(path: Path, columns: Columns) -> Table:
    return _parse_json_lines(path, _decode(path), columns)


def _read_json(path: Path, columns: Columns) -> Table:
    """A list of objects; many files with this suffix hold one object a line, and are read as such."""
    text = _decode(path)
    if not text.lstrip().startswith("["):
        return _parse_json_lines(path, text, columns)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no valid JSON.", got=str(error), do="correct the file") from None
    faults = {i: NOT_A_RECORD for i, value in enumerate(values) if not isinstance(value, dict)}
    return pick_columns(str(path), [value if isinstance(value, dict) else None for value in values], faults, columns)


def _parse_json_lines(path: Path, text: str, columns: Columns) -> Table:
    records: list[dict[str, Any] | None] = []
    faults: dict[int, str] = {}
    for line in text.split("\n"):
        if not line.strip():
            continue
        record = None
        try:
            record = json.loads(line)
            reason = None if isinstance(record, dict) else NOT_A_RECORD
        except json.JSONDecodeError as error:
            reason = f"malformed JSON ({error.msg} at character {error.colno})"
        except (ValueError, RecursionError):
            reason = "malformed JSON"
        if reason is not None:
            faults[len(records)] = reason
            record = None
        records.append(record)
    return pick_columns(str(path), records, faults, columns)


def _read_csv(path: Path, columns: Columns) -> Table:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows, broken = _parse_csv(_decode(path), delimiter)
    header, records = (rows[0], rows[1:]) if rows else ([], [])
    if header:
        require_columns(str(path), header, columns)
    for column in (*columns.items, *columns.answers, columns.label):
        if column is not None and header.count(column) > 1:
            raise DataError(f"{path} has more than one column {column!r}.", do="rename the others")
    faults = {
        i: f"{len(record)} fields where the header has {len(header)}; quote texts that hold a delimiter"
        for i, record in enumerate(records)
        if len(record) != len(header)
    }
    if broken is not None:
        faults[len(records)] = broken
        records = [*records, []]

    def cells(column: str) -> list[object]:
        return [None if i in faults else record[header.index(column)] for i, record in enumerate(records)]

    return make_table(str(path), header, cells, columns, faults)


def _parse_csv(text: str, delimiter: str) -> tuple[list[list[str]], str | None]:
    """All records, and why the one after them could not be read (nothing after it can be trusted either)."""
    limit = csv.field_size_limit(sys.maxsize)  # the library's own limit is 128 KiB, less than a long document
    rows: list[list[str]] = []
    try:
        rows.extend(row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if row)
    except csv.Error as error:
        return rows, f"malformed ({error}); a quote inside a quoted text is written twice"
    finally:
        csv.field_size_limit(limit)
    return rows, None


def _read_parquet(path: Path, columns: Columns) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        names = list(pyarrow.parquet.read_schema(path).names)
        require_columns(str(path), names, columns)
        wanted = [*columns.items, *columns.answers, *([columns.label] if columns.label in names else [])]
        data = pyarrow.parquet.read_table(path, columns=list(dict.fromkeys(wanted)))
        cells = {column: _arrow_values(data.column(column)) for column in dict.fromkeys(wanted)}
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:  # the latter inside lists, which arrow decodes
        got = str(error).split("\n")[0]
        raise DataError(f"{path} is no intact Parquet file.", got=got, do="write the file again") from None
    if columns.label in names:
        cells[columns.label] = with_class_names(cells[columns.label], _class_names(data.schema, columns.label))
    return make_table(str(path), names, cells.__getitem__, columns)


def with_class_names(labels: Sequence[object], names: Sequence[str] | None) -> list[object]:
    """Replace the integers of a ClassLabel column by their names; -1, which means no label, becomes None."""
    if names is None:
        return list(labels)
    return [names[label] if isinstance(label, int) and 0 <= label < len(names) else None for label in labels]


def _joined(cells: Sequence[object]) -> object:
    """The cells that hold something, one a line; a cell that is no text stands for all, so that its fault is named."""
    present = [cell for cell in cells if cell is not None and not (isinstance(cell, float) and math.isnan(cell))]
    texts = [cell for cell in present if isinstance(cell, str)]
    if len(texts) < len(present):
        return next(cell for cell in present if not isinstance(cell, str))
    return "\n".join(text for text in texts if text.strip()) if texts else None


def _class_names(schema: Any, column: str | None) -> list[str] | None:
    """Class names that `datasets` stores in the metadata of a Parquet file."""
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])
        return list(info["info"]["features"][column]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _arrow_values(column: Any) -> list[object]:
    """Python values of a column; strings are decoded here, so that invalid UTF-8 is a faulty row."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)):
        return column.to_pylist()
    values = column.cast(pyarrow.large_binary()).to_pylist()
    return [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]


def _read_text(path: Path, columns: Columns) -> Table:
    lines = [line.rstrip("\r") for line in _decode(path).split("\n") if line.strip()]
    return Table(str(path), [], lines, None, range(1, len(lines) + 1))


def _decode(path: Path) -> str:
    """The text of a file; bytes that are no UTF-8 stay recognisable, so that the check can name their row."""
    raw = path.read_bytes()
    if raw.startswith(UTF_16_MARKS):
        raise DataError(f"{path} has another encoding.", got="UTF-16", expected="UTF-8", do="save it as UTF-8")
    return raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")


READERS: dict[str, Callable[[Path, Columns], Table]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".txt": _read_text,
}
