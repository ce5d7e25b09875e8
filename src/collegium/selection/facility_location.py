"""Representative proxies: every relevant item of the pool shall have a similar pick.

Objective: `F(S) = Σ_v g_v · max(0, max_{s∈S} f_v·f_s)`, relevance-weighted coverage. F is monotone and submodular,
so that the greedy reaches at least 1 − 1/e of the best (Nemhauser, Wolsey, Fisher 1978); it is computed lazily
(Minoux 1978) and without the n × n matrix of similarities.

Deviation for large pools: v runs over the `COVERED` items with the lowest content hashes, a sample that is
uniform, the same on every machine, and bounds time and memory; every item can be picked.
"""

import numpy as np
from threadpoolctl import threadpool_limits

from collegium.core.progress import progress_bar
from collegium.core.shapes import Embeddings, Scores
from collegium.selection.candidates import Rows, Weights, candidates, shortfall
from collegium.selection.dpp import Selection
from collegium.selection.kernel import log_residuals
from collegium.selection.lazy import Greedy, lazy_greedy

COVERED = 20_000  # most items to cover: 61 MB of float64 at d = 384
CHUNK = 256  # candidates compared with all covered items at a time: 41 MB
TIE = 1e-12  # gains within TIE of the largest F that is possible are a tie


def select_facility_location(
    features: Embeddings,
    log_relevance: Scores,
    size: int,
    ridge: float,
    content_hashes: list[str] | None = None,
) -> Selection:
    """Pick `size` items, each the one that raises the coverage most.

    Ties go to the more relevant item, then to the lowest content hash (the lowest row without hashes); so do
    items that cover nothing more. With c = min(n, 20,000) covered items: O(n·c·d) time once (308 GFLOP at
    n = c = 20,000, d = 384) and O(c·d) for each value that is refreshed; O(n + c·(d + 256)) memory
    beside the features. BLAS runs on one thread.

    Args:
        features: seed embeddings, one row an item, any float dtype, in memory or `np.memmap`.
        log_relevance: log g, at most 0; −inf = neither picked nor covered.
        ridge: λ of the kernel whose log det is reported; it changes no pick.

    Returns:
        `gains`: by how much each pick raised F. `log_det`: of the kernel of the picks.

    Raises:
        InputError: see `candidates`.
    """
    rows, weights = candidates(features, log_relevance, size, content_hashes)
    log_g = np.asarray(log_relevance, np.float64)
    order = np.empty(len(rows), np.int64)
    order[np.argsort(-log_g[rows], kind="stable")] = np.arange(len(rows))
    if not len(rows):
        return Selection(rows, np.empty(0), 0.0, shortfall(0, size, len(features)))
    with threadpool_limits(limits=1):
        coverage = _Coverage(features, rows, weights)
        with progress_bar("compare the pool", len(rows)) as bar:
            bounds = np.empty(len(rows))
            for start in range(0, len(rows), CHUNK):
                part = np.arange(start, min(start + CHUNK, len(rows)))
                bounds[part] = coverage.refresh(part)
                bar.advance(len(part))
        # no pick can gain more than Σ g_v ‖f_v‖ ‖f_s‖; its rounding is what decides nothing
        tolerance = TIE * float(coverage.weights @ np.linalg.norm(coverage.covered, axis=1)) * coverage.norms
        greedy = Greedy(coverage.refresh, coverage.take, tolerance, order)
        items, values = lazy_greedy(greedy, bounds, size, "select by coverage")
        picks = rows[items]
        log_det = float(log_residuals(features[picks], log_g[picks], ridge).sum())
    gains = np.array(values) * np.exp(log_g[rows].max())
    return Selection(picks, gains, log_det, shortfall(len(picks), size, len(features)))


class _Coverage:
    """How well each covered item is represented by the picks so far."""

    def __init__(self, features: Embeddings, rows: Rows, weights: Weights):
        self.features, self.rows = features, rows
        self.covered = np.asarray(features[rows[:COVERED]], np.float64)  # rows stand in the order of their hashes
        self.weights = weights[:COVERED]
        self.best = np.zeros(len(self.covered))  # similarity to the most similar pick, at least 0
        self.norms = np.empty(len(rows))

    def refresh(self, items: Rows) -> Weights:
        """By how much each item would raise F."""
        gains = np.empty(len(items))
        for start in range(0, len(items), CHUNK):
            part = items[start : start + CHUNK]
            chunk = np.asarray(self.features[self.rows[part]], np.float64)
            self.norms[part] = np.sqrt(np.einsum("id,id->i", chunk, chunk))
            rise = chunk @ self.covered.T  # chunk, covered
            rise -= self.best
            np.maximum(rise, 0.0, out=rise)
            gains[start : start + CHUNK] = rise @ self.weights
        return gains

    def take(self, item: int) -> None:
        row = np.asarray(self.features[self.rows[item]], np.float64)
        np.maximum(self.best, self.covered @ row, out=self.best)
