"""Pool records that are equal or close to private ones: a planted record would turn a selection into an oracle.

Leaving such records out silently would itself tell who is in the data; so they are shown to the owner, and nothing
leaves without the owner's word.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from collegium.core.errors import ReleaseRefused
from collegium.core.shapes import Embeddings
from collegium.data.items import Item, content_hash, describe
from collegium.selection.pool import Pool

CHUNK = 8192
SHOWN = 5


@dataclass(frozen=True)
class Overlap:
    """One pool record that is equal or close to a private one."""

    pool_row: int
    private_row: int
    cosine: float


def find_overlap(
    pool: Pool,
    texts: Sequence[Item],
    embeddings: Float32[np.ndarray, "private dim"] | Embeddings,
    similarity: float,
) -> list[Overlap]:
    """All pool records equal to a private item, or whose embedding has at least this cosine with one.

    Cost: O(pool · private · dim) time, memory of one chunk of the pool.
    """
    known = {content_hash(text): row for row, text in enumerate(texts)}
    found = {row: Overlap(row, known[value], 1.0) for row, value in enumerate(pool.hashes) if value in known}
    for start in range(0, len(pool), CHUNK):
        rows = np.asarray(pool.embeddings[start : start + CHUNK], np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)  # a hostile pool could hold shortened embeddings
        cosines = rows @ embeddings.T / np.maximum(lengths, np.finfo(np.float32).tiny)
        nearest = cosines.argmax(axis=1)
        for offset in np.flatnonzero(cosines.max(axis=1) >= similarity):
            row, private = start + int(offset), int(nearest[offset])
            found.setdefault(row, Overlap(row, private, float(cosines[offset, private])))
    return [found[row] for row in sorted(found)]


def refuse_overlap(pool: Pool, texts: Sequence[Item], found: Sequence[Overlap]) -> None:
    """Show the overlap to the owner and stop.

    Raises:
        ReleaseRefused: with the first few records; nothing has left.
    """
    shown = [
        f"pool record {one.pool_row} {describe(pool.texts([one.pool_row])[0])} is like private example "
        f"{one.private_row} {describe(texts[one.private_row])} (cosine {one.cosine:.3f})"
        for one in found[:SHOWN]
    ]
    more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    raise ReleaseRefused(
        f"{len(found)} record(s) of the public pool are equal or close to private ones:\n    "
        + "\n    ".join(shown + more),
        do="remove these examples from the private data, ask the coordinator about the pool, or, if the items are "
        "public anyway, run again with --allow-overlap",
    )
