"""Choices that belong to one example, as of CommonsenseQA, CosmosQA and SocialIQA, and which of them is right.

Choices come as a list of strings, as the dict `{label: […], text: […]}` of the hub, or from a column each. The label
names the right one by the dict's key, by its text, by its letter from A or by its number. What could mean two of them
is a fault of the row: learning a wrong answer is worse than stopping. Reasons quote nothing of a row.
"""

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass

MISSING_LABELS = {"", "nan", "NaN"}  # what an empty cell becomes on its way through other tools


@dataclass(frozen=True)
class OwnChoices:
    """The answers to one text.

    Attributes:
        keys: name of each, by which alone the label then goes; None = they have none.
    """

    texts: list[str]
    keys: list[str] | None = None


def choices_of(cell: object) -> OwnChoices:
    """The choices that a cell holds.

    Raises:
        ValueError: missing, fewer than two, one that is empty or no text, or two that are the same; with the reason.
    """
    if cell is None:
        raise ValueError("the choices are missing")
    keys: object = None
    if isinstance(cell, Mapping):
        cell, keys = cell.get("text"), cell.get("label")
        if not isinstance(keys, list):
            raise ValueError("the choices are no {label: [...], text: [...]}")
    if not isinstance(cell, list):
        raise ValueError(f"the choices are no list but {type(cell).__name__}")
    texts = _names(cell, "choice")
    if len(texts) < 2:
        raise ValueError(f"there is {len(texts)} choice" if texts else "there are no choices")
    if isinstance(keys, list) and len(keys) != len(texts):
        raise ValueError(f"there are {len(texts)} choices with {len(keys)} keys")
    return OwnChoices(texts, _names(keys, "key of choice") if isinstance(keys, list) else None)


def right_choice(label: object, choices: OwnChoices, first: int) -> str:
    """The text of the choice that a label names.

    Args:
        first: number of the first choice.

    Raises:
        ValueError: none, or one by its text and another by its letter or number; with the reason.
    """
    name, keys, texts = label_name(label), choices.keys, choices.texts
    if keys is not None and name in keys:
        return texts[keys.index(name)]
    by_text = None if name not in texts or (keys is None and _is_number(label)) else texts.index(name)
    by_place = None if name is None or keys is not None else _place(name, first)
    meant = {place for place in (by_text, by_place) if place is not None and 0 <= place < len(texts)}
    if len(meant) > 1:
        raise ValueError("the label is the text of one choice, and the letter or number of another")
    if meant:
        return texts[meant.pop()]
    raise ValueError(
        f"the label is none of the {len(texts)} choices: no key and no text of one"
        if keys is not None
        else f"the label is none of the {len(texts)} choices: no text, letter from A or number from {first} of one"
    )


def label_name(label: object) -> str | None:
    """The name that stands for a cell; None if the cell is empty or holds no scalar."""
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return None
    if isinstance(label, float) and label.is_integer():
        label = int(label)  # an integer column with gaps comes back as floats
    if not isinstance(label, str | int | float | bool):
        return None
    name = str(label).strip()
    return None if name in MISSING_LABELS or not is_unicode(name) else name


def is_unicode(text: str) -> bool:
    """False for text with lone surrogates: what `surrogateescape` makes of invalid bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _names(cells: list[object], what: str) -> list[str]:
    """Cells as stripped text, all different."""
    names: list[str] = []
    for number, cell in enumerate(cells, 1):
        name = label_name(cell)
        if name is None:
            raise ValueError(f"{what} {number} is missing or no text")
        if name in names:
            raise ValueError(f"{what} {number} is the same as {what} {names.index(name) + 1}")
        names.append(name)
    return names


def _is_number(label: object) -> bool:
    return not isinstance(label, bool) and (isinstance(label, int) or (isinstance(label, float) and label.is_integer()))


def _place(name: str, first: int) -> int | None:
    """The place that a letter or a number stands for."""
    if len(name) == 1 and name in string.ascii_uppercase:
        return string.ascii_uppercase.index(name)
    return int(name) - first if name.isascii() and name.isdecimal() and len(name) < 10 else None
