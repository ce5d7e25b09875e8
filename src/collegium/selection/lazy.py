"""Greedy picks by values that never rise (Minoux 1978): a stale value is an upper bound, so few are refreshed.

The picks are those of a plain greedy that computes every value anew for every pick. Submodular gains and the
distance to the nearest pick are such values.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from collegium.core.progress import progress_bar
from collegium.core.shapes import Indices
from collegium.selection.candidates import Rows, Weights

BLOCK = 16  # items refreshed at first; doubled until no stale bound can matter


@dataclass(frozen=True)
class Greedy:
    """What is maximised.

    Attributes:
        refresh: present values of some items; [items] → [items].
        take: adds a pick, after which values fall.
        tolerance: of each item, how far its value may be off by rounding; values within it are a tie.
        order: place of each item among ties, the lowest first.
    """

    refresh: Callable[[Rows], Weights]
    take: Callable[[int], None]
    tolerance: Float64[np.ndarray, " items"]
    order: Indices


def lazy_greedy(
    greedy: Greedy, bounds: Float64[np.ndarray, " items"], size: int, description: str
) -> tuple[list[int], list[float]]:
    """Pick `size` items, or all with a bound above −inf; the picks and the value of each when it was picked.

    O(n) time a pick beside what is refreshed.
    """
    upper = bounds + greedy.tolerance
    picks: list[int] = []
    values: list[float] = []
    with progress_bar(description, size) as bar:
        while len(picks) < size:
            found = _best(greedy, upper)
            if found is None:
                break
            item, value = found
            greedy.take(item)
            upper[item] = -np.inf
            picks.append(item)
            values.append(value)
            bar.advance()
    return picks, values


def _best(greedy: Greedy, upper: Float64[np.ndarray, " items"]) -> tuple[int, float] | None:
    """The item with the largest value (ties: lowest order), with its value; brings `upper` up to date."""
    stale = upper.copy()
    fresh, values = np.empty(0, np.int64), np.empty(0)
    floor, block = -np.inf, BLOCK
    while True:
        top = np.argpartition(-stale, block)[:block] if block < len(stale) else np.arange(len(stale))
        top = np.sort(top[(stale[top] > -np.inf) & (stale[top] >= floor)])
        if not len(top):
            break
        found = greedy.refresh(top)
        upper[top] = found + greedy.tolerance[top]
        stale[top] = -np.inf
        fresh, values = np.append(fresh, top), np.append(values, found)
        best = np.argmax(values)
        floor = values[best] - greedy.tolerance[fresh[best]]
        block *= 2
    if not len(fresh):
        return None
    ties = np.flatnonzero(upper[fresh] >= floor)
    winner = ties[np.argmin(greedy.order[fresh[ties]])]
    return int(fresh[winner]), float(values[winner])
