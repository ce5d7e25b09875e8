"""An item is what a model reads: a text or a picture. What the rest of the project needs to know of either is here.

Everything after reading (splits, pools, selection, training, evaluation) handles items and asks no further.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

from collegium.data.images import Picture

Item = str | Picture
Modality = Literal["text", "image"]


def content_hash(item: Item) -> str:
    """Identity of an item: the first 128 bits of a sha256 of its text, or of its pixels, in hex."""
    if isinstance(item, Picture):
        return item.content_hash
    return hashlib.sha256(item.encode()).hexdigest()[:32]


def normalised(item: Item) -> str:
    """What equal items share: a text with every run of white space as one space; of a picture, its content hash."""
    return item.content_hash if isinstance(item, Picture) else " ".join(item.split())


def as_json(item: Item) -> str:
    """What stands for an item where a stage's inputs are hashed."""
    return f"picture {item.content_hash}" if isinstance(item, Picture) else item


def describe(item: Item) -> str:
    """An item in a message to its owner."""
    if not isinstance(item, Picture):
        return repr(item[:80])
    height, width, _ = item.pixels.shape
    return f"(a picture of {width} × {height} pixels, content hash {item.content_hash})"


def modality_of(items: Sequence[Item]) -> Modality:
    """What the items of a data set are; reading has made sure that they are all of one kind."""
    return "image" if len(items) and isinstance(items[0], Picture) else "text"
