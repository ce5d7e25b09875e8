"""Diverse and relevant proxies: exact greedy MAP of a relevance-weighted determinantal point process.

Kernel `L = diag(g) (F Fᵀ + λI) diag(g)` (MetaMoE; greedy: Chen, Zhang, Zhou 2018,
https://arxiv.org/abs/1709.05135; lazy bounds: Hemmi et al. 2022). Each pick is the item with the largest
residual `r_i = det(L_{S∪i}) / det(L_S)`.

In the dual form `r_i = g_i² q_i` with `q_i = λ + f_iᵀ M f_i` and `M = I − Σ_s v_s v_sᵀ`; picking p adds the
direction `v = M f_p / √q_p`, and every `q_i` falls by `(f_i·v)²`. Residuals never increase, so a stale one is
an upper bound. Hence rounds: float32 finds the few hundred items whose bounds lead, however it rounds; float64
computes these exactly and picks among them while the best of them lies above every other bound.

Deviations: no item is left out in advance (the published code looks at the 2,000 most relevant), and `r` is compared
by its logarithm, so that no relevance is too small to count.

Symbols: f features, g relevance, λ ridge, q `value`, v `Directions`, λ + ‖f‖² `diagonal`.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float64
from threadpoolctl import ThreadpoolController

from collegium.core.errors import InputError
from collegium.core.progress import progress_bar
from collegium.core.shapes import Embeddings, Indices, Picks, Scores
from collegium.selection.inputs import check_lengths, check_log_relevance, check_size, hash_order
from collegium.selection.residuals import TIE, Directions, Residuals

ACTIVE = 128, 1024  # least and most items that compete between two rounds; changes the time, never the picks
LEAST_RIDGE = 1e-30  # of a ridge that is not 0
VANISHING = 1e-250  # a residual this far below the round's largest weight waits for a round of its own


@dataclass(frozen=True)
class Selection:
    """Items of a pool in the order of their picks.

    `gains` holds the residual r at each pick (0 where it is below the smallest float64), `log_det` the sum of
    their logarithms. `shortfall` is None, or says how many items were found and why not more.
    """

    indices: Indices
    gains: Float64[np.ndarray, " items"]
    log_det: float
    shortfall: str | None


def select_dpp(
    features: Embeddings,
    log_relevance: Scores,
    size: int,
    ridge: float,
    content_hashes: list[str] | None = None,
    threads: int = 1,
) -> Selection:
    """Pick `size` items as a float64 greedy on the dense kernel would, without the kernel.

    Ties (see `TIE`) go to the lowest content hash, so that the order of the pool does not matter; without
    hashes, or between items with the same hash, they go to the lowest row. BLAS runs on one thread meanwhile.
    Time O(ρ·n·d·min(size, d)) with ρ the share of the pool that may still matter (0.3–0.9); memory
    O(n + size·d + d²) beside the features.

    Args:
        features: seed embeddings, one row an item, any float dtype, in memory or `np.memmap`; used as they
            are.
        log_relevance: log g, at most 0; −inf = never pick.
        size: most items to pick, at least 1.
        ridge: λ, 0 or at least `LEAST_RIDGE`. Below 1e-12 of ‖f‖² it is lost in rounding. With λ = 0 no more
            items can be picked than the rank of the features: an item counts as spanned when
            max(1e-10, 64 eps²) of its squared norm is left, with eps that of the features' dtype.
        content_hashes: one for each row.
        threads: work on this many chunks of the pool at a time; changes the time, never the picks.

    Raises:
        InputError: NaN, infinite or zero-norm features, a log relevance that is NaN or above 0 (the row is
            named), lengths that differ, a size or ridge out of range.
    """
    _check(features, log_relevance, size, ridge, content_hashes)
    num_items, dim = features.shape
    most = min(size, num_items, num_items if ridge > 0 else dim)
    workers = ThreadPoolExecutor(threads) if threads > 1 else nullcontext()
    with _blas().limit(limits=1), workers as executor:
        residuals = Residuals(features, log_relevance, Directions(most, dim, ridge), executor)
        eligible = int((residuals.upper > -np.inf).sum())
        picks, values = _greedy(residuals, hash_order(num_items, content_hashes), most)
    log_gains = 2 * np.asarray(log_relevance, np.float64)[picks] + np.log(values)
    return Selection(picks, np.exp(log_gains), float(log_gains.sum()), _shortfall(len(picks), size, eligible, features))


def _greedy(residuals: Residuals, order: Indices, most: int) -> tuple[Picks, Float64[np.ndarray, " picks"]]:
    """Rounds: find the leaders, compute them exactly, pick among them while they lead."""
    picks: list[int] = []
    values: list[float] = []
    fewest = wanted = int(np.clip(len(order) // 16, *ACTIVE))
    with progress_bar("select proxies", most) as bar:
        while len(picks) < most:
            rows, outside = residuals.leaders(wanted)
            if not len(rows):
                break
            before = len(picks)
            active = _Active(residuals, rows, order)
            while len(picks) < most:
                best, floor = active.best()
                if floor <= outside:
                    break
                picks.append(int(rows[best]))
                values.append(active.pick(best))
            active.close(np.array(picks[before:], np.int64))
            bar.advance(len(picks) - before)
            # Where rounding or ties hide who leads, more rows have to be looked at exactly.
            wanted = fewest if len(picks) > before else 2 * wanted
    return np.array(picks, np.int64), np.array(values, np.float64)


class _Active:
    """The leaders of one round, in float64; residuals r relative to the largest weight among them."""

    def __init__(self, residuals: Residuals, rows: Picks, order: Indices):
        self.residuals, self.rows, self.order = residuals, rows, order[rows]
        self.features = residuals.exact(rows)
        self.value, norms = residuals.value[rows], residuals.norms[rows]
        self.diagonal, self.spanned = residuals.ridge + norms, residuals.spanned * norms
        log_weight = np.where(residuals.upper[rows] > -np.inf, residuals.log_weight[rows], -np.inf)
        self.scale = float(log_weight.max(initial=-np.inf))
        self.weight = np.exp(log_weight - self.scale) if self.scale > -np.inf else np.zeros(len(rows))
        self.weight[self.value <= self.spanned] = 0.0
        self.tie = TIE * self.diagonal

    def best(self) -> tuple[int, float]:
        """The item with the largest r (ties: lowest hash), and the bound on log r from which a rival matters."""
        relative = self.weight * self.value
        best = int(relative.argmax())
        if relative[best] < VANISHING:
            return best, -np.inf
        floor = self.weight[best] * max(self.value[best] - self.tie[best], self.value[best] / 2)
        ties = np.flatnonzero(relative + self.weight * self.tie >= floor)
        if len(ties) > 1:
            best = int(ties[self.order[ties].argmin()])
        return best, self.scale + math.log(floor)

    def pick(self, best: int) -> float:
        """Take an item out, lower all others by its direction, and return its q."""
        direction, value = self.residuals.directions.append(self.features[best], float(self.diagonal[best]))
        products = self.features @ direction
        self.value -= products * products
        np.maximum(self.value, self.residuals.ridge, out=self.value)
        self.weight[best] = 0.0
        if not self.residuals.ridge:
            self.weight[self.value <= self.spanned] = 0.0
        return value

    def close(self, picked: Picks) -> None:
        """Give what was computed back to the pool."""
        self.residuals.upper[picked] = -np.inf
        self.residuals.store(self.rows, self.value)


@cache
def _blas() -> ThreadpoolController:
    """The loaded BLAS libraries: finding them takes longer than a small selection."""
    return ThreadpoolController()


def _shortfall(found: int, size: int, eligible: int, features: Embeddings) -> str | None:
    if found == size:
        return None
    if found == eligible:
        return f"{found} of {size} items found: of the pool's {len(features)}, {eligible} have relevance above 0"
    return (
        f"{found} of {size} items found: without a ridge every further item lies in the span of these "
        f"(rank {found}, dimension {features.shape[1]})"
    )


def _check(
    features: Embeddings,
    log_relevance: Scores,
    size: int,
    ridge: float,
    content_hashes: list[str] | None,
) -> None:
    check_size(size)
    if not (ridge == 0 or LEAST_RIDGE <= ridge < np.inf):
        raise InputError(
            "The ridge of the selection is out of range.", got=ridge, expected=f"0, or at least {LEAST_RIDGE:g}"
        )
    check_lengths(len(features), log_relevance, content_hashes)
    check_log_relevance(log_relevance)
