"""Named random streams: every stage draws from its own, so that adding one never shifts another.

These streams make a run repeatable. Random numbers that protect somebody never come from here but from the
operating system.
"""

import hashlib

import numpy as np


def stream_seed(random_seed: int, *names: str) -> int:
    """A 32-bit seed for the stream called `names` (for libraries that take an integer)."""
    text = "\x1f".join([str(random_seed), *names])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def stream(random_seed: int, *names: str) -> np.random.Generator:
    """A numpy generator for the stream called `names`.

    >>> int(stream(0, "split", "newsroom").integers(100)) == int(stream(0, "split", "newsroom").integers(100))
    True
    """
    return np.random.default_rng(stream_seed(random_seed, *names))
