"""Diverse and relevant proxies: exact greedy MAP of a relevance-weighted determinantal point process.

Kernel `L = diag(g) (F Fᵀ + λI) diag(g)` (MetaMoE; greedy: Chen, Zhang, Zhou 2018,
https://arxiv.org/abs/1709.05135; lazy bounds: Hemmi et al. 2022). Each pick is the item with the largest
residual `r_i = det(L_{S∪i}) / det(L_S)`.

In the dual form `r_i = g_i² q_i` with `q_i = λ + f_iᵀ M f_i` and `M = I − Σ_s v_s v_sᵀ`; picking p adds the
direction `v = M f_p / √q_p`, and every `q_i` falls by `(f_i·v)²`. Residuals never increase, so a stale one is
an upper bound: only the items whose bound reaches the best are brought up to date, in rounds, and the picks
are still exact.

Deviations: everything is float64, and `r` is compared by its logarithm, so that no relevance is too small to
    count.

Symbols: f features, g relevance, λ ridge, q `value`, v `directions`, λ + ‖f‖² `diagonal`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int
from threadpoolctl import threadpool_limits

from collegium.core.errors import InputError
from collegium.core.shapes import Embeddings, Indices, Scores

TIE = 1e-12  # residuals within TIE · g²(λ + ‖f‖²), each item's own, are a tie; about 400 times their rounding
SPANNED = 1e-10  # least share of ‖f‖² outside the span of the picks, without a ridge (float16: 64 eps²)
ACTIVE = 1024  # items that compete between two rounds; changes the time, never the picks
CHUNK = 1024  # rows held in float64 at a time


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
) -> Selection:
    """Pick `size` items as a float64 greedy on the dense kernel would, without the kernel.

    Ties (see `TIE`) go to the lowest content hash, so that the order of the pool does not matter; without
    hashes, or between items with the same hash, they go to the lowest row. BLAS runs on one thread meanwhile.
    Time O(n·d·size) at worst, about a tenth of it on clustered data; memory O(n + size·d) beside the
    features.

    Args:
        features: seed embeddings, one row an item, any float dtype, in memory or `np.memmap`; used as they
            are.
        log_relevance: log g, at most 0; −inf = never pick.
        size: most items to pick, at least 1.
        ridge: λ, at least 0. Below 1e-12 of ‖f‖² it is lost in rounding. With λ = 0 no more items can be
            picked than the rank of the features: an item counts as spanned when max(1e-10, 64 eps²) of its
            squared norm is left, with eps that of the features' dtype.
        content_hashes: one for each row.

    Raises:
        InputError: NaN, infinite or zero-norm features, a log relevance that is NaN or above 0 (the row is
            named), lengths that differ, a size or ridge out of range.
    """
    _check(features, log_relevance, size, ridge, content_hashes)
    with threadpool_limits(limits=1):
        residuals = _Residuals(features, log_relevance, size, ridge)
        eligible = int(np.isfinite(residuals.upper).sum())
        picks, values = _greedy(residuals, hash_order(len(features), content_hashes))
    log_gains = 2 * np.asarray(log_relevance, np.float64)[picks] + np.log(values)
    return Selection(picks, np.exp(log_gains), float(log_gains.sum()), _shortfall(len(picks), size, eligible, features))


def hash_order(num_items: int, content_hashes: list[str] | None) -> Indices:
    """Place of every item among the sorted content hashes (its row where there are none)."""
    order = np.arange(num_items)
    if content_hashes is not None:
        # stable: rows with the same hash keep their order
        order[sorted(range(num_items), key=content_hashes.__getitem__)] = np.arange(num_items)
    return order


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


def checked_chunks(
    embeddings: Embeddings, name: str
) -> Iterator[tuple[slice, Float64[np.ndarray, "_ dim"], Float64[np.ndarray, " _"]]]:
    """Yield (rows, float64 copy, squared norms) of `CHUNK` rows at a time.

    Raises:
        InputError: a row with NaN, an infinite value or norm, or the norm 0; `name` says in which array.
    """
    for start in range(0, len(embeddings), CHUNK):
        rows = slice(start, min(start + CHUNK, len(embeddings)))
        chunk = np.asarray(embeddings[rows], np.float64)
        with np.errstate(over="ignore", under="ignore"):
            squared_norms = np.einsum("id,id->i", chunk, chunk)
        wrong = np.flatnonzero(~(np.isfinite(squared_norms) & (squared_norms > 0)))
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


Rows = Int[np.ndarray, " _"]  # some of the pool's rows


class _Residuals:
    """q of every item, each as of some pick (`seen`), and `upper`, which bounds log r + a tie from above."""

    def __init__(self, features: Embeddings, log_relevance: Scores, size: int, ridge: float):
        self.features, self.ridge = features, ridge
        num_items, dim = features.shape
        squared_norms = np.empty(num_items)
        for rows, _, chunk_norms in checked_chunks(features, "pool"):
            squared_norms[rows] = chunk_norms
        self.diagonal = ridge + squared_norms
        self.value = self.diagonal.copy()
        rounding = float(np.finfo(features.dtype).eps) ** 2
        self.least = squared_norms * (0.0 if ridge > 0 else max(SPANNED, 64 * rounding))
        log_g = np.asarray(log_relevance, np.float64)
        highest = log_g.max(initial=-np.inf)
        self.log_weight = 2 * (log_g - (highest if np.isfinite(highest) else 0.0))
        self.upper = self.log_weight + np.log(self.diagonal * (1 + TIE))
        self.upper[np.isneginf(log_g)] = -np.inf
        self.seen = np.zeros(num_items, np.int64)
        self.count = 0
        self.directions = np.empty((min(size, num_items, num_items if ridge > 0 else dim), dim))

    def refresh(self, rows: Indices) -> None:
        """Bring `rows` up to date: one product with the directions that they missed, group by group."""
        for seen in np.unique(self.seen[rows]):
            missed = self.directions[seen : self.count]
            group = np.sort(rows[self.seen[rows] == seen])
            for start in range(0, len(group) if len(missed) else 0, CHUNK):
                chunk = group[start : start + CHUNK]
                products = np.asarray(self.features[chunk], np.float64) @ missed.T  # chunk, missed
                self.lower_by(chunk, np.einsum("is,is->i", products, products))

    def lower_by(self, rows: Indices, decrease: Float64[np.ndarray, " items"]) -> None:
        """Subtract what the latest directions explain from q; picked and spanned items are out for good."""
        value = np.maximum(self.value[rows] - decrease, self.ridge)
        self.value[rows], self.seen[rows] = value, self.count
        out = np.isneginf(self.upper[rows]) | (value <= self.least[rows])
        self.upper[rows] = self.log_weight[rows] + np.log(np.maximum(value, 0) + TIE * self.diagonal[rows])
        self.upper[rows[out]] = -np.inf

    def winner(self, rows: Rows, order: Indices) -> tuple[int | None, float]:
        """The best of some fresh rows (ties: lowest hash), and the bound from which a rival matters."""
        rows = rows[self.upper[rows] > -np.inf]
        if not len(rows):
            return None, -np.inf
        best = rows[np.argmax(self.log_weight[rows] + np.log(self.value[rows]))]
        least = max(self.value[best] - TIE * self.diagonal[best], self.value[best] / 2)
        floor = float(self.log_weight[best] + np.log(least))
        ties = rows[self.upper[rows] >= floor]
        return int(ties[np.argmin(order[ties])]), floor

    def pick(self, item: int) -> float:
        """Take `item` out, append its direction, and return its q."""
        row = np.asarray(self.features[item], np.float64)
        directions = self.directions[: self.count]
        rest = row - (directions @ row) @ directions
        if self.ridge > 0:
            value = max(self.ridge + float(row @ rest), self.ridge)
        else:
            rest -= (directions @ rest) @ directions  # Gram-Schmidt twice is enough (Giraud et al. 2005)
            value = float(rest @ rest)
        # A ridge below rounding would blow the rounding of `rest` up: divide by at least a tie.
        self.directions[self.count] = rest / np.sqrt(max(value, TIE * self.diagonal[item]))
        self.count += 1
        self.upper[item] = -np.inf
        return value


def _greedy(residuals: _Residuals, order: Indices) -> tuple[Rows, Float64[np.ndarray, " _"]]:
    """Rounds: refresh what may be among the best, copy `ACTIVE` rows, pick among them while they lead."""
    picks: list[int] = []
    values: list[float] = []
    while len(picks) < len(residuals.directions):
        fresh, outside = _fresh_leaders(residuals, order)
        item, _ = residuals.winner(fresh, order)
        if item is None:
            break
        if len(fresh) > ACTIVE:
            split = np.argpartition(-residuals.upper[fresh], ACTIVE)
            fresh, others = fresh[split[:ACTIVE]], fresh[split[ACTIVE:]]
            outside = max(outside, float(residuals.upper[others].max()))
        active_features = np.asarray(residuals.features[fresh], np.float64)
        while item is not None:
            picks.append(item)
            values.append(residuals.pick(item))
            residuals.lower_by(fresh, (active_features @ residuals.directions[residuals.count - 1]) ** 2)
            item, floor = residuals.winner(fresh, order)
            if floor <= outside or len(picks) == len(residuals.directions):
                break
    return np.array(picks, np.int64), np.array(values, np.float64)


def _fresh_leaders(residuals: _Residuals, order: Indices) -> tuple[Rows, float]:
    """Fresh items that hold the best `ACTIVE` and every tie of the best; the largest bound of all others."""
    by_bound = np.argsort(-residuals.upper)
    by_bound = by_bound[residuals.upper[by_bound] > -np.inf]
    bounds = np.append(residuals.upper[by_bound], -np.inf)  # as they were before this round
    done = 0
    while done < len(by_bound):
        block = by_bound[done : done + max(2 * ACTIVE, done // 2)]
        residuals.refresh(block)
        done += len(block)
        _, floor = residuals.winner(by_bound[:done], order)
        upper = residuals.upper[by_bound[:done]]
        last_active = -np.inf if done < ACTIVE else np.partition(upper, done - ACTIVE)[done - ACTIVE]
        if min(floor, last_active) > bounds[done]:
            break
    return by_bound[:done], float(bounds[done])


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
    if size < 1:
        raise InputError("No proxies can be selected.", got=f"size {size}", expected="at least 1")
    if not 0 <= ridge < np.inf:
        raise InputError("The ridge of the selection is out of range.", got=ridge, expected="a number ≥ 0")
    for name, values in (("relevance scores", log_relevance), ("content hashes", content_hashes)):
        if values is not None and len(values) != len(features):
            raise InputError(
                f"The pool has another number of {name} than of embeddings.",
                got=len(values),
                expected=len(features),
            )
    check_log_relevance(log_relevance)
