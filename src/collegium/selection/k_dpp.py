"""Diverse proxies by chance: an exact sample of the k-DPP with the kernel of `dpp.py`, on pools of any size.

A k-DPP picks the subset S of size k with probability proportional to det(L_S) (Kulesza and Taskar 2011, "k-DPPs:
fixed-size determinantal point processes"). Here `L = diag(g) (F Fᵀ + λI) diag(g) = BBᵀ + D`, with `B = diag(g) F` and
`D = λ diag(g²)`. No n × n matrix is made: a pool of n items needs its d × d Gram matrix (the dual form, Kulesza and
Taskar 2012, https://arxiv.org/abs/1207.6083, section 3.3).

Without a ridge, L has the eigenvalues of BᵀB: k of them are chosen by elementary symmetric polynomials (in log space),
then k items by the projection on their eigenvectors.

A ridge gives L full rank, n eigenvalues. Instead, a DPP whose size is free, with L scaled so that k is its mean size,
is drawn on condition that its size is k, which is a k-DPP exactly. Such a DPP needs no n × n matrix either:
`det((BBᵀ + D)_S) = Σ_{T⊆S} det((BBᵀ)_T) Π_{i∈S∖T} D_ii`, so S = T ∪ R, where T is a DPP of
`(I+D)^{-½} BBᵀ (I+D)^{-½}` (of rank d) and every item outside T is in R by itself, with probability
D_ii / (1 + D_ii). For the condition, T is kept with probability P(|R| = k − |T|, given T) over an upper bound of it:
σ P ≤ 0.4688 for every sum of Bernoulli variables (Baillon, Cominetti, Vaisman 2016, "A sharp uniform bound for the
distribution of sums of Bernoulli trials"), or P of all items, raised by as much as T can raise it. The latter
refuses most sizes before T is drawn, so that few T are.

Deviation from the textbook's second phase: the next item is drawn by stale probabilities, which are upper bounds, and
accepted with the ratio to its present one; all are brought up to date whenever half of the dimensions are spent. The
same distribution, by O(log k) passes over the pool instead of k.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from threadpoolctl import threadpool_limits

from collegium.core.errors import InputError
from collegium.core.progress import progress_bar
from collegium.core.random_streams import stream
from collegium.core.shapes import Embeddings, Scores
from collegium.selection.candidates import Rows, Weights, candidates, shortfall
from collegium.selection.dpp import Selection
from collegium.selection.inputs import CHUNK
from collegium.selection.kernel import log_residuals
from collegium.selection.residuals import SPANNED

ROUNDING = 1e-14  # eigenvalues below this share of the largest are rounding
LEAST = 1e-100  # share of the largest g from which items can be drawn: squared, and scaled, it stays a float64
NEAR = 0.005  # how far the mean size may be from the wanted one, as a share: costs draws, changes no probability
HIGHEST = 0.4688  # no sum of Bernoulli variables has a value with more probability than this / standard deviation


def select_k_dpp(
    features: Embeddings,
    log_relevance: Scores,
    size: int,
    ridge: float,
    random_seed: int,
    content_hashes: list[str] | None = None,
) -> Selection:
    """Draw `size` items, relevant and diverse ones more likely; all sizes and ridges are exact.

    The random stream is "selection". Items stand in the order of their content hashes, so the order of the pool does
    not matter. Where fewer items have g > 0, all are picked; without a ridge, no more than the rank of the weighted
    features (eigenvalues above max(1e-10, 64 eps²) of the largest). O(n·d² + n·d·size) time, with a ridge times the
    number of draws; O(n + d² + size²) memory beside the features. BLAS runs on one thread.

    Args:
        features: seed embeddings, one row an item, any float dtype, in memory or `np.memmap`.
        log_relevance: log g, at most 0; −inf = never pick. With a ridge, items with g below 1e-100 of the largest
            are picked only where the others are too few, the most relevant first.
        ridge: λ, at least 0.

    Returns:
        `gains`: the kernel's residuals in the order of the draws, and their `log_det`.

    Raises:
        InputError: see `candidates`; a ridge so small that the size cannot be drawn in float64.
    """
    rows, weights = candidates(features, log_relevance, size, content_hashes)
    log_g = np.asarray(log_relevance, np.float64)
    rng = stream(random_seed, "selection")
    strong = np.flatnonzero(weights > LEAST)
    rank = len(rows)
    with threadpool_limits(limits=1):
        if ridge == 0 and len(rows):
            found, rank = _draw_without_ridge(_Weighted(features, rows, weights), size, rng)
        elif len(strong) > size:
            found = strong[_draw_with_ridge(_Weighted(features, rows[strong], weights[strong]), size, ridge, rng)]
        else:  # nothing to draw: the strong are in every likely subset
            found = np.argsort(-log_g[rows], kind="stable")[:size]
        picks = rows[found]
        log_gains = log_residuals(features[picks], log_g[picks], ridge)
    missing = shortfall(len(picks), size, len(features))
    if missing is not None and rank < len(rows):
        missing = f"{rank} of {size} items found: without a ridge no more than the rank of the features, {rank}"
    return Selection(picks, np.exp(log_gains), float(log_gains.sum()), missing)


@dataclass(frozen=True)
class _Weighted:
    """The candidates' rows of B = diag(g) F, read in chunks and in the order of their hashes."""

    features: Embeddings
    rows: Rows
    weights: Weights

    def chunks(self):
        for start in range(0, len(self.rows), CHUNK):
            part = slice(start, min(start + CHUNK, len(self.rows)))
            yield part, np.asarray(self.features[self.rows[part]], np.float64) * self.weights[part, None]

    def row(self, item: int) -> Float64[np.ndarray, " dim"]:
        return np.asarray(self.features[self.rows[item]], np.float64) * self.weights[item]

    def gram(self, *factors: Weights) -> list[Float64[np.ndarray, "dim dim"]]:
        """Bᵀ diag(factor) B for each factor, by one pass over the pool."""
        dim = self.features.shape[1]
        grams = [np.zeros((dim, dim)) for _ in factors]
        with progress_bar("read the pool", len(self.rows)) as bar:
            for part, chunk in self.chunks():
                for index, factor in enumerate(factors):
                    grams[index] += (chunk * factor[part, None]).T @ chunk
                bar.advance(len(chunk))
        return grams


def _draw_without_ridge(world: _Weighted, size: int, rng: np.random.Generator) -> tuple[Rows, int]:
    """Items of a k-DPP of BBᵀ, with k at most the rank; the rank."""
    ones = np.ones(len(world.rows))
    rounding = 64 * float(np.finfo(world.features.dtype).eps) ** 2
    values, vectors = _spectrum(world.gram(ones)[0], max(SPANNED, rounding))
    chosen = _choose(values, min(size, len(values)), rng)
    return _draw_projection(world, ones, vectors[:, chosen] / np.sqrt(values[chosen]), rng), len(values)


def _draw_with_ridge(world: _Weighted, size: int, ridge: float, rng: np.random.Generator) -> Rows:
    """Items of a k-DPP of BBᵀ + D."""
    scale = _scale(world, size, ridge)
    diagonal = scale * ridge * world.weights**2
    tilt = scale / (1 + diagonal)
    values, vectors = _spectrum(world.gram(tilt)[0], ROUNDING)
    alone = diagonal / (1 + diagonal)
    variances = np.sort(alone * (1 - alone))
    least_variance = float(variances[: max(len(variances) - len(values), 0)].sum())  # T can be those that vary most
    ceiling = min(1.0, HIGHEST / np.sqrt(least_variance)) if least_variance > 0 else 1.0
    with np.errstate(divide="ignore"):
        log_sizes = np.log(_size_distribution(alone))
    log_lifts = np.append(0.0, np.cumsum(np.log1p(np.sort(diagonal)[::-1])))  # T of t items can raise P(|R|) so
    while True:
        chosen = rng.random(len(values)) < values / (1 + values)
        spanned_size = int(chosen.sum())
        missing = size - spanned_size
        if missing < 0:
            continue
        bound = min(ceiling, float(np.exp(min(log_sizes[missing] + log_lifts[spanned_size], 0.0))))
        if rng.random() * ceiling >= bound:
            continue
        spanned = _draw_projection(world, tilt, vectors[:, chosen] / np.sqrt(values[chosen]), rng)
        others = alone.copy()
        others[spanned] = 0.0
        if rng.random() * bound >= _size_distribution(others)[missing]:
            continue
        while True:
            ridged = np.flatnonzero(rng.random(len(others)) < others)
            if len(ridged) == missing:
                return np.append(spanned, ridged)


def _size_distribution(probabilities: Weights) -> Weights:
    """Probability of every size of a set in which each item is by itself; to about 1e-15. O(n log² n)."""
    products = np.stack([1 - probabilities, probabilities], axis=1)  # polynomials, multiplied in pairs
    while len(products) > 1:
        if len(products) % 2:
            one = np.zeros((1, products.shape[1]))
            one[0, 0] = 1.0
            products = np.concatenate([products, one])
        length = 2 * products.shape[1] - 1
        spectra = np.fft.rfft(products, n=length)
        products = np.fft.irfft(spectra[::2] * spectra[1::2], n=length)
    return np.maximum(products[0], 0.0)


def _scale(world: _Weighted, size: int, ridge: float) -> float:
    """The factor α on L with which a DPP of free size has about `size` items on average.

    The mean size is n − tr((I + αL)⁻¹) (Woodbury: n − Σ E_i + tr((I + BᵀEB)⁻¹ BᵀE²B), E = (I + αD)⁻¹, B with √α). It is
    at most the sum of that of BBᵀ alone and that of D alone, which gives a first, too small, α without the pool.
    """
    squared = world.weights**2
    values = np.linalg.eigvalsh(world.gram(np.ones(len(squared)))[0]).clip(min=0)

    def at_most(log_scale: float) -> float:
        scale = np.exp(log_scale)
        alone = scale * ridge * squared
        return float((scale * values / (1 + scale * values)).sum() + (alone / (1 + alone)).sum())

    def excess(log_scale: float) -> float:
        scale = np.exp(log_scale)
        inverse = 1 / (1 + scale * ridge * squared)
        gram, twice = world.gram(scale * inverse, scale * inverse**2)
        return float((1 - inverse).sum() + np.trace(np.linalg.solve(np.eye(len(gram)) + gram, twice))) - size

    low, high = -600.0, 600.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(middle) < size else (low, middle)
    before, now = low, low + 0.25
    excess_before, excess_now = excess(before), excess(now)
    for _ in range(30):  # secant
        if abs(excess_now) <= NEAR * size or now > 600:
            break
        slope = max((excess_now - excess_before) / (now - before), 1e-6)
        step = float(np.clip(-excess_now / slope, -2.0, 2.0))
        before, now, excess_before = now, now + step, excess_now
        excess_now = excess(now)
    if excess_now < -size / 10 - 1:  # the draws would go on for ever
        raise InputError(
            "The k-DPP of this size cannot be drawn with this ridge.",
            got=f"size {size}, ridge {ridge}",
            expected="a ridge above rounding where more items are wanted than the rank of the features",
            do="raise selection.ridge, or lower selection.size",
        )
    return float(np.exp(now))


def _spectrum(
    gram: Float64[np.ndarray, "dim dim"], least: float
) -> tuple[Float64[np.ndarray, " _"], Float64[np.ndarray, "dim _"]]:
    """Eigenvalues above `least` of the largest, and their eigenvectors as columns."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > max(least * values.max(initial=0.0), 0.0)
    return values[kept], vectors[:, kept]


def _choose(values: Float64[np.ndarray, " _"], size: int, rng: np.random.Generator) -> Rows:
    """`size` of the eigenvalues, each set with probability proportional to its product (Kulesza, Taskar 2011)."""
    logs = np.log(values)
    # table[n, l] = log e_l of the first n eigenvalues
    table = np.full((len(logs) + 1, size + 1), -np.inf)
    table[:, 0] = 0.0
    for n, log_value in enumerate(logs):
        table[n + 1, 1:] = np.logaddexp(table[n, 1:], log_value + table[n, :-1])
    chosen: list[int] = []
    wanted = size
    for n in range(len(logs), 0, -1):
        if wanted and np.log(rng.random()) < logs[n - 1] + table[n - 1, wanted - 1] - table[n, wanted]:
            chosen.append(n - 1)
            wanted -= 1
    return np.array(chosen, np.int64)


def _draw_projection(
    world: _Weighted,
    factors: Weights,
    basis: Float64[np.ndarray, "dim _"],
    rng: np.random.Generator,
) -> Rows:
    """One item for each column: the projection DPP whose orthonormal eigenvectors are diag(√factor) B basis."""
    roots = np.sqrt(factors)
    taken = np.zeros(len(roots), bool)
    picks: list[int] = []
    with progress_bar("draw", basis.shape[1]) as bar:
        while basis.shape[1]:
            bounds = np.empty(len(roots))
            for part, chunk in world.chunks():
                coordinates = chunk @ basis
                bounds[part] = factors[part] * np.einsum("ik,ik->i", coordinates, coordinates)
            bounds[taken] = 0.0
            cumulative = np.cumsum(bounds)
            directions = np.zeros((0, basis.shape[1]))
            while 2 * len(directions) < basis.shape[1]:
                place = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
                item = min(int(place), len(roots) - 1)
                rest = roots[item] * (world.row(item) @ basis)
                for _ in range(2):  # Gram-Schmidt twice is enough
                    rest -= (directions @ rest) @ directions
                present = float(rest @ rest)
                if taken[item] or rng.random() * bounds[item] >= present:
                    continue
                taken[item] = True
                picks.append(item)
                directions = np.vstack([directions, rest / np.sqrt(present)])
                bar.advance()
            complete = np.linalg.qr(directions.T, mode="complete")[0]
            basis = basis @ complete[:, len(directions) :]
    return np.array(picks, np.int64)
