"""What every selection checks before it reads a pool: rows and relevance that are numbers, one order for ties."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64

from collegium.core.errors import InputError
from collegium.core.shapes import Embeddings, Indices, Scores

CHUNK = 1024  # rows that are held in working precision at a time


def checked_chunks(
    embeddings: Embeddings, name: str, precision: Any = np.float64
) -> Iterator[tuple[slice, Float[np.ndarray, "_ dim"], Float64[np.ndarray, " _"]]]:
    """Yield (rows, copy in `precision`, squared norms) of `CHUNK` rows at a time.

    Raises:
        InputError: a row with NaN, an infinite value or norm, or the norm 0; `name` says in which array.
    """
    for start in range(0, len(embeddings), CHUNK):
        rows = slice(start, min(start + CHUNK, len(embeddings)))
        chunk = in_precision(embeddings[rows], precision)
        squared_norms = _squared_norms(chunk)
        if not _usable(squared_norms).all():  # float32 may have over- or underflowed
            squared_norms = _squared_norms(np.asarray(embeddings[rows], np.float64))
        wrong = np.flatnonzero(~_usable(squared_norms))
        if len(wrong):
            norm = squared_norms[wrong[0]]
            got = "norm 0" if norm == 0 else f"norm² {norm}" + ("" if np.isinf(norm) else ": a value that is no number")
            raise InputError(
                f"Row {start + wrong[0]} of the {name} embeddings cannot be used.",
                got=got,
                expected="finite values, not all of them 0",
                do="embed this record again, or take it out",
            )
        yield rows, chunk, squared_norms


def in_precision(rows: Float[np.ndarray, "_ dim"], precision: Any) -> Float[np.ndarray, "_ dim"]:
    """The rows in float32 or float64, in memory; a copy only where one is needed."""
    if rows.dtype == np.float16:  # torch converts it ten times as fast as numpy
        rows = torch.from_numpy(np.array(rows)).float().numpy()
    return np.asarray(rows, precision)


def hash_order(num_items: int, content_hashes: list[str] | None) -> Indices:
    """Place of every item among the sorted content hashes (its row where there are none)."""
    order = np.arange(num_items)
    if content_hashes is not None:
        # stable: rows with the same hash keep their order
        order[sorted(range(num_items), key=content_hashes.__getitem__)] = np.arange(num_items)
    return order


def check_size(size: int) -> None:
    """Refuse to pick nothing."""
    if size < 1:
        raise InputError("No proxies can be selected.", got=f"size {size}", expected="at least 1")


def check_lengths(num_items: int, log_relevance: Scores | None, content_hashes: list[str] | None) -> None:
    """Refuse scores or hashes, where there are any, that are not one for each of the pool's embeddings."""
    for name, values in (("relevance scores", log_relevance), ("content hashes", content_hashes)):
        if values is not None and len(values) != num_items:
            raise InputError(
                f"The pool has another number of {name} than of embeddings.",
                got=len(values),
                expected=num_items,
                do="build the pool again",
            )


def check_log_relevance(log_relevance: Scores) -> None:
    """Refuse scores that are no logarithm of a relevance in [0, 1].

    Raises:
        InputError: naming the first faulty row.
    """
    wrong = np.flatnonzero(np.isnan(log_relevance) | (log_relevance > 0))
    if len(wrong):
        raise InputError(
            f"The relevance of row {wrong[0]} of the pool cannot be used.",
            got=f"log g = {log_relevance[wrong[0]]}",
            expected="at most 0; −inf = never pick",
        )


def _squared_norms(chunk: Float[np.ndarray, "_ dim"]) -> Float64[np.ndarray, " _"]:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.einsum("id,id->i", chunk, chunk).astype(np.float64)


def _usable(squared_norms: Float64[np.ndarray, " _"]) -> np.ndarray:
    return np.isfinite(squared_norms) & (squared_norms > 0)
