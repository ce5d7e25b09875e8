"""Diverse proxies by distance: greedy farthest point, weighted by relevance.

Objective: the weighted k-centre problem, minimise `max_i g_i · min_{s∈S} ‖f_i − f_s‖`: no relevant item shall lie
far from every pick. The greedy takes the most relevant item, then always the item with the largest
`g_i · min_{s∈S} ‖f_i − f_s‖`. With equal relevance it is at most twice the optimum (Gonzalez 1985); with weights
at most min(3, 1 + max g / min g) times (Dyer and Frieze 1985, "A simple heuristic for the p-centre problem").

Euclidean distance is monotone in the cosine of unit-norm rows. Unlike the DPP, it knows only the nearest pick.
"""

import numpy as np
from jaxtyping import Float64
from threadpoolctl import threadpool_limits

from collegium.core.shapes import Embeddings, Scores
from collegium.selection.candidates import Rows, Weights, candidates, shortfall
from collegium.selection.dpp import Selection
from collegium.selection.inputs import CHUNK
from collegium.selection.kernel import log_residuals
from collegium.selection.lazy import Greedy, lazy_greedy

SAME = 1e-12  # squared distances below SAME · (‖f‖² + ‖s‖²) are 0: the rounding of float32 rows is 1e-14


def select_k_centre(
    features: Embeddings,
    log_relevance: Scores,
    size: int,
    ridge: float,
    content_hashes: list[str] | None = None,
) -> Selection:
    """Pick `size` items, each the farthest from those before it, its distance weighted by its relevance.

    Ties go to the more relevant item, then to the lowest content hash (the lowest row without hashes); so do
    items that lie on a pick, once nothing else is left. O(n·d·size) time at worst, less where relevance differs,
    since distances only fall; O(n + size·d) memory beside the features. BLAS runs on one thread.

    Args:
        features: seed embeddings, one row an item, any float dtype, in memory or `np.memmap`.
        log_relevance: log g, at most 0; −inf = never pick.
        ridge: λ of the kernel whose log det is reported; it changes no pick.

    Returns:
        `gains`: g times the distance to the nearest earlier pick (infinite for the first). `log_det`: of the
        kernel of the picks.

    Raises:
        InputError: see `candidates`.
    """
    rows, weights = candidates(features, log_relevance, size, content_hashes)
    log_g = np.asarray(log_relevance, np.float64)
    # relevance as it was given decides ties, not its share, which may underflow
    by_relevance = np.argsort(-log_g[rows], kind="stable")
    order = np.empty(len(rows), np.int64)
    order[by_relevance] = np.arange(len(rows))
    if not len(rows):
        return Selection(rows, np.empty(0), 0.0, shortfall(0, size, len(features)))
    with threadpool_limits(limits=1):
        distances = _Distances(features, rows, weights)
        first = int(by_relevance[0])
        distances.take(first)
        bounds = distances.refresh(np.arange(len(rows)))
        bounds[first] = -np.inf
        greedy = Greedy(distances.refresh, distances.take, SAME * weights**2 * distances.scale, order)
        others, values = lazy_greedy(greedy, bounds, size - 1, "select by distance")
        picks = rows[[first, *others]]
        scale = 2 * log_g[rows].max()
        with np.errstate(divide="ignore"):
            gains = np.exp((np.log(values) + scale) / 2)
        log_det = float(log_residuals(features[picks], log_g[picks], ridge).sum())
    return Selection(picks, np.append(np.inf, gains), log_det, shortfall(len(picks), size, len(features)))


class _Distances:
    """Squared distance of every candidate to its nearest pick, each as of some pick (`seen`)."""

    def __init__(self, features: Embeddings, rows: Rows, weights: Weights):
        self.features, self.rows, self.weights = features, rows, weights
        self.squared = np.full(len(rows), np.inf)
        self.seen = np.zeros(len(rows), np.int64)
        self.picks: list[Float64[np.ndarray, " dim"]] = []
        self.scale = np.empty(len(rows))  # ‖f‖² + max ‖f‖²
        for start in range(0, len(rows), CHUNK):
            chunk = self._read(np.arange(start, min(start + CHUNK, len(rows))))
            self.scale[start : start + CHUNK] = np.einsum("id,id->i", chunk, chunk)
        self.scale += self.scale.max(initial=0.0)

    def refresh(self, items: Rows) -> Weights:
        """g² times the squared distance, after the picks that each item missed."""
        for seen in np.unique(self.seen[items]):
            group = items[self.seen[items] == seen]
            missed = np.array(self.picks[seen:])
            for start in range(0, len(group) if len(missed) else 0, CHUNK):
                part = group[start : start + CHUNK]
                self.squared[part] = np.minimum(self.squared[part], self._nearest(self._read(part), missed))
        self.seen[items] = len(self.picks)
        return self.weights[items] ** 2 * self.squared[items]

    def take(self, item: int) -> None:
        self.picks.append(self._read(np.array([item]))[0])

    def _read(self, items: Rows) -> Float64[np.ndarray, "_ dim"]:
        return np.asarray(self.features[self.rows[items]], np.float64)

    @staticmethod
    def _nearest(chunk: Float64[np.ndarray, "_ dim"], missed: Float64[np.ndarray, "picks dim"]) -> Weights:
        scale = np.einsum("id,id->i", chunk, chunk)[:, None] + np.einsum("pd,pd->p", missed, missed)
        squared = scale - 2 * chunk @ missed.T
        return np.where(squared < SAME * scale, 0.0, squared).min(axis=1)
