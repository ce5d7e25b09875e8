"""What the picks leave of every item of a pool: cheap bounds of all of them, exact values of a few.

With the directions v that the picks added, `q_i = λ + ‖f_i‖² − Σ_s (f_i·v_s)²`. An item is brought up to date by one
matrix product with the directions that it missed, in float32, and the rounding that this may have cost is added to its
bound; a bound can be stale, since q never increases. `exact` computes q in float64 from the features.
"""

from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from collegium.core.shapes import Embeddings, Indices, Picks, Scores
from collegium.selection.inputs import CHUNK, checked_chunks, in_precision

TIE = 1e-12  # residuals within TIE · g²(λ + ‖f‖²), each item's own, are a tie; about 400 times their rounding
SPANNED = 1e-10  # least share of ‖f‖² outside the span of the picks, without a ridge (float16: 64 eps²)
ROUNDING = 8.0  # float32 sums of t squares are taken to be within ROUNDING · eps · √t · ‖f‖² (seen: at most 1)
ORDINARY = 1e6  # norms² between its inverse and it are safe in float32
GROWTH = 2.0  # of the blocks in which stale items are looked at


class Directions:
    """The directions v of the picks so far, in float64 and in float32; [count, dim]."""

    def __init__(self, most: int, dim: int, ridge: float):
        self.ridge, self.count = ridge, 0
        self._double, self._single = np.empty((most, dim)), np.empty((most, dim), np.float32)
        self._last_gram, self._gram_of = np.empty((dim, dim)), (0, 0)

    def append(self, row: Float64[np.ndarray, " dim"], diagonal: float) -> tuple[Float64[np.ndarray, " dim"], float]:
        """Add the direction of a picked row, v = M f / √q with M = I − Σ v vᵀ; returns v and q."""
        directions = self._double[: self.count]
        rest = row - (directions @ row) @ directions
        if self.ridge > 0:
            value = max(self.ridge + float(row @ rest), self.ridge)
        else:
            rest -= (directions @ rest) @ directions  # Gram-Schmidt twice is enough (Giraud et al. 2005)
            value = float(rest @ rest)
        # A ridge below rounding would blow the rounding of `rest` up: divide by at least a tie.
        direction = rest / np.sqrt(max(value, TIE * diagonal))
        self._double[self.count] = self._single[self.count] = direction
        self.count += 1
        return direction, value

    def explained(self, features: Float[np.ndarray, "_ dim"], since: int) -> Float64[np.ndarray, " _"]:
        """Σ (f·v)² over the directions from `since` on, in the precision of the features."""
        missed = (self._double if features.dtype == np.float64 else self._single)[since : self.count]
        if len(missed) > missed.shape[1]:  # then Σ (f·v)² = fᵀ (Σ v vᵀ) f is less work
            products = features @ self._gram(since).astype(features.dtype, copy=False)  # items, dim
            return np.einsum("id,id->i", products, features).astype(np.float64)
        products = features @ missed.T  # items, directions
        return np.einsum("is,is->i", products, products).astype(np.float64)

    def _gram(self, since: int) -> Float64[np.ndarray, "dim dim"]:
        if self._gram_of != (since, self.count):
            missed = self._double[since : self.count]
            self._last_gram, self._gram_of = missed.T @ missed, (since, self.count)
        return self._last_gram


class Residuals:
    """q of every item as of the pick `seen`, within ± `error`, and `upper`, which bounds log r + a tie from above."""

    def __init__(self, features: Embeddings, log_relevance: Scores, directions: Directions, executor: Executor | None):
        self.features, self.directions, self.ridge = features, directions, directions.ridge
        self._map = map if executor is None else executor.map
        self._single = np.float32 if features.dtype.itemsize <= 4 else np.float64
        num_items = len(features)
        self.norms = np.empty(num_items)
        for rows, _, squared_norms in checked_chunks(features, "pool", self._single):
            self.norms[rows] = squared_norms
        if num_items and not 1 / ORDINARY < self.norms.min() <= self.norms.max() < ORDINARY:
            self._single = np.float64
            for rows, _, squared_norms in checked_chunks(features, "pool"):
                self.norms[rows] = squared_norms
        self.spanned = 0.0 if self.ridge > 0 else max(SPANNED, 64 * float(np.finfo(features.dtype).eps) ** 2)
        self.log_weight = 2 * np.asarray(log_relevance, np.float64)
        finite = np.isfinite(self.log_weight)
        if finite.any():  # the largest weight becomes 1
            self.log_weight -= self.log_weight[finite].max()
        self.value = self.ridge + self.norms
        self.error = self._rounding(features.shape[1]) * self.norms
        self.seen = np.zeros(num_items, np.int32)
        self.upper = np.where(np.isfinite(log_relevance), 0.0, -np.inf)
        self._bound(np.arange(num_items))

    def leaders(self, wanted: int) -> tuple[Picks, float]:
        """Up-to-date rows that hold the `wanted` largest bounds, and the largest bound of all others."""
        alive = int((self.upper > -np.inf).sum())
        if not alive:
            return np.empty(0, np.int64), -np.inf
        cuts = [min(wanted, alive)]
        while cuts[-1] < alive:
            cuts.append(min(int(cuts[-1] * GROWTH) + 1, alive))
        order = np.argpartition(-self.upper, [min(cut, len(self.upper) - 1) for cut in cuts])
        leaders, outside = np.empty(0, np.int64), -np.inf
        for start, stop in zip([0, *cuts], cuts, strict=False):
            stale = float(self.upper[order[stop]]) if stop < len(order) else -np.inf  # largest of what is not looked at
            self._refresh(order[start:stop])
            leaders = np.concatenate([leaders, order[start:stop]])
            if len(leaders) > wanted:
                split = np.argpartition(-self.upper[leaders], wanted)
                outside = max(outside, float(self.upper[leaders[split[wanted]]]))
                leaders = leaders[split[:wanted]]
            if float(self.upper[leaders].min(initial=np.inf)) >= stale:
                return leaders, max(outside, stale)
        return leaders, outside

    def _refresh(self, rows: Indices) -> None:
        """Bring `rows` up to date, group by group of those that missed the same directions; exact values stay so."""
        rows = np.sort(rows[self.seen[rows] < self.directions.count])
        fine = (self.error[rows] == 0) & (self.seen[rows] > 0)
        for precision, some in ((np.float64, rows[fine]), (self._single, rows[~fine])):
            seen = self.seen[some]
            for since in np.flatnonzero(np.bincount(seen)):
                group = some[seen == since]
                chunks = [group[start : start + CHUNK] for start in range(0, len(group), CHUNK)]
                list(self._map(partial(self._lower, since=int(since), precision=precision), chunks))
        self.seen[rows] = self.directions.count
        self._bound(rows)

    def exact(self, rows: Indices) -> Float64[np.ndarray, "_ dim"]:
        """Compute q of `rows` in float64; returns their features."""
        features = in_precision(self.features[rows], np.float64)
        inexact = np.flatnonzero(self.error[rows] > 0)
        norms = np.einsum("id,id->i", features, features)
        self.norms[rows] = norms
        explained = self.directions.explained(features[inexact], 0)
        self.store(rows[inexact], self.ridge + norms[inexact] - explained)
        late = np.flatnonzero(self.seen[rows] < self.directions.count)
        for since in np.unique(self.seen[rows[late]]):
            some = late[self.seen[rows[late]] == since]
            self.store(rows[some], self.value[rows[some]] - self.directions.explained(features[some], int(since)))
        return features

    def store(self, rows: Indices, values: Float64[np.ndarray, " _"]) -> None:
        """Keep exact values of q as of now."""
        self.value[rows], self.error[rows], self.seen[rows] = np.maximum(values, self.ridge), 0.0, self.directions.count
        self._bound(rows)

    def _lower(self, rows: Indices, since: int, precision: Any) -> None:
        explained = self.directions.explained(in_precision(self.features[rows], precision), since)
        self.value[rows] = np.maximum(self.value[rows] - explained, self.ridge)
        if precision == np.float32:
            self.error[rows] += self._rounding(self.directions.count - since) * self.norms[rows]

    def _rounding(self, terms: int) -> float:
        return ROUNDING * float(np.finfo(np.float32).eps) * np.sqrt(terms) if self._single == np.float32 else 0.0

    def _bound(self, rows: Indices) -> None:
        """Recompute `upper`; picked and spanned items are out for good."""
        most = self.value[rows] + self.error[rows]
        out = np.isneginf(self.upper[rows]) | (most <= self.spanned * self.norms[rows])
        tie = TIE * (self.ridge + self.norms[rows])
        upper = self.log_weight[rows] + np.log(np.maximum(most, 0.0) + tie)
        self.upper[rows] = np.where(out, -np.inf, upper)
