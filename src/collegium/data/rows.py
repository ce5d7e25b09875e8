"""Checks every row of a table and turns the good ones into examples; lists the faulty ones.

A row is at fault if its text is missing, empty, no string or no valid Unicode, if its picture could not be read, if
its label is missing, or if its choices are (own_choices.py) or the label names none of them.
All faults of a data set are counted and the first five are listed in one error, so that a file is corrected
once and not five times. The content of a row is never quoted: error messages end up in logs, and the rows are
private.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from collegium.core.errors import DataError
from collegium.data.images import Picture
from collegium.data.items import Item
from collegium.data.own_choices import choices_of, is_unicode, label_name, right_choice

MOST_FAULTS_LISTED = 5


@dataclass(frozen=True)
class Examples:
    """Texts or pictures and, where there are any, the class name of each.

    Attributes:
        choices: answers that compete for each text, where texts have choices of their own; a label is then the right
            one of them, and no class name.
    """

    texts: Sequence[Item]
    labels: list[str] | None
    choices: list[list[str]] | None = None

    def __post_init__(self) -> None:
        for what, values in (("labels", self.labels), ("choices", self.choices)):
            if values is not None and len(values) != len(self.texts):
                raise DataError(
                    f"Texts and {what} do not belong together.",
                    got=f"{len(values)} {what}",
                    expected=f"{len(self.texts)} {what}",
                )

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Sequence[int]) -> "Examples":
        """The examples at `indices`, in that order."""
        labels = None if self.labels is None else [self.labels[i] for i in indices]
        choices = None if self.choices is None else [self.choices[i] for i in indices]
        return Examples([self.texts[i] for i in indices], labels, choices)

    @property
    def class_names(self) -> list[str]:
        """All labels in sorted order; none where every text has choices of its own."""
        return [] if self.choices is not None else sorted(set(self.labels or []))


@dataclass(frozen=True)
class Table:
    """The columns of one file (or folder of texts) as they were read, before any check.

    Args:
        source: the file, folder or hub split, as it stands in messages.
        columns: names of all columns that are there.
        texts: cells of the item column; pictures are `Picture`s already (read_pictures.py).
        labels: None if the label column is not there or was not asked for.
        places: where each row stands: its number from 1, or the name of its file.
        faults: rows (by index) that could not even be read, with the reason.
        choices: cells of the choices column, or a list of cells where each choice has a column; None if that was not
            asked for.
        first_choice: number of the first choice, where labels are numbers.
    """

    source: str
    columns: list[str]
    texts: Sequence[object]
    labels: Sequence[object] | None
    places: Sequence[int | str]
    faults: dict[int, str] = field(default_factory=dict)
    choices: Sequence[object] | None = None
    first_choice: int = 0


def check_rows(tables: Sequence[Table], with_labels: bool) -> Examples:
    """All rows of `tables`, one after the other.

    Args:
        with_labels: False leaves the labels out, and what is wrong with them does not matter.

    Raises:
        DataError: there are faulty rows (file, row and reason of the first five, and how many there are), or
            no row at all.
    """
    texts: list[Item] = []
    labels: list[str] = []
    choices: list[list[str]] = []
    faults: list[str] = []
    for table in tables:
        table_labels = table.labels if with_labels else None
        for index, text in enumerate(table.texts):
            label = "" if table_labels is None else label_name(table_labels[index])
            reason = table.faults.get(index) or _fault_of_text(text) or _fault_of_label(table_labels, index, label)
            if reason is None and table.choices is not None:
                try:
                    own = choices_of(table.choices[index])
                    if table_labels is not None:
                        label = right_choice(table_labels[index], own, table.first_choice)
                    choices.append(own.texts)
                except ValueError as error:
                    reason = str(error)
            if reason is not None:
                place = table.places[index]
                where = f"row {place}" if isinstance(place, int) else place
                faults.append(f"{table.source}, {where}: {reason}")
            elif isinstance(text, str | Picture) and label is not None:
                texts.append(text)
                labels.append(label)
    if faults:
        raise DataError(_list_faults(faults), do="correct or remove these rows (row 1 is the first record of its file)")
    if not texts:
        raise DataError(
            f"{sources_of(tables)} holds no rows.",
            do="check the file; a header or an empty file alone is not enough",
        )
    own_choices = choices if all(table.choices is not None for table in tables) else None
    return Examples(texts, labels if with_labels else None, own_choices)


def printable(text: str) -> str:
    """`text` without the bytes that a terminal could not show, at most 60 characters."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= 60 else text[:59] + "…"


def sources_of(tables: Sequence[Table]) -> str:
    """The names of all tables, for a message."""
    return ", ".join(dict.fromkeys(table.source for table in tables)) or "The data"


def _fault_of_text(text: object) -> str | None:
    if isinstance(text, Picture):
        return None
    if text is None or (isinstance(text, float) and math.isnan(text)):
        return "the text is missing"
    if not isinstance(text, str):
        return f"the text is no string but {type(text).__name__}"
    if not text.strip():
        return "the text is empty"
    if not is_unicode(text):
        return "the text is no valid UTF-8; save the file with that encoding"
    return None


def _fault_of_label(labels: Sequence[object] | None, index: int, name: str | None) -> str | None:
    if labels is None or name is not None:
        return None
    label = labels[index]
    if isinstance(label, str) and not is_unicode(label):
        return "the label is no valid UTF-8; save the file with that encoding"
    if label is None or isinstance(label, str | float):
        return "the label is missing"
    return f"the label is no name but {type(label).__name__}"


def _list_faults(faults: list[str]) -> str:
    lines = faults[:MOST_FAULTS_LISTED]
    if len(faults) > len(lines):
        lines.append(f"… and {len(faults) - len(lines)} more")
    count = "1 row is" if len(faults) == 1 else f"{len(faults)} rows are"
    return f"{count} at fault:\n    " + "\n    ".join(lines)
