"""The router in closed form, from what owners released and from the public pool (METHODS §6).

    raw         W's rows are the routing vectors, as published
    normalised  the rows have length 1: their norms no longer decide
    lda         linear discriminant analysis around the pool's mean μ₀, with the pool's covariance Σ:
                w_p = Σ'⁻¹ (r_p − μ₀),  b_p = −½ (r_p − μ₀)ᵀ w_p,  Σ' = Σ + s·tr(Σ)/d·I
                (Σ is singular: z comes from a LayerNorm)
    whitened    cosine in the space where the pool is white: w_p = Σ'⁻¹ (r_p − μ₀) / ‖r_p − μ₀‖_Σ'⁻¹, b_p = 0

Why `whitened` is the default: the proxies in r_p pull it toward the pool's mean, by a share that nobody outside the
owner knows. That changes the length of r_p − μ₀ far more than its direction, and in LDA the length sets the
thresholds. A cosine does not see it (docs/lab-notes.md has the measurements).

All of it in float64. The temperature is fitted on held-out proxies, so that probabilities are not saturated and
gradients survive; it never changes which expert is best.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from collegium.core.errors import DataError
from collegium.core.progress import progress_bar
from collegium.models.ffn_inputs import ffn_input_means
from collegium.models.seed_model import SeedModel
from collegium.moe.router import Router
from collegium.selection.pool import Pool, is_held_out

MOST_ITEMS = 20_000  # pool items in the statistics, in the order of their hashes
CHUNK = 4096
WIDEST = 5.0  # the fitted temperature keeps the mean gap between best and worst logit within 1 / WIDEST … WIDEST


@dataclass(frozen=True)
class PoolStatistics:
    """Mean and covariance of the seed's mean FFN inputs over the pool, at one layer."""

    mean: Float64[np.ndarray, " dim"]
    covariance: Float64[np.ndarray, "dim dim"]


@dataclass(frozen=True)
class RouterWeights:
    """logits = (weight (z − centre) + bias) / temperature."""

    weight: Float64[np.ndarray, "experts dim"]
    bias: Float64[np.ndarray, " experts"]
    centre: Float64[np.ndarray, " dim"]
    temperature: float = 1.0

    def logits(self, means: Float64[np.ndarray, "items dim"]) -> Float64[np.ndarray, "items experts"]:
        return ((means - self.centre) @ self.weight.T + self.bias) / self.temperature


def initial_router(
    init: Literal["raw", "normalised", "lda", "whitened"],
    vectors: Float[np.ndarray, "experts dim"],
    pool: PoolStatistics,
    shrinkage: float,
    fallback_bias: float | None,
) -> RouterWeights:
    """Closed-form weights of one layer's router.

    Args:
        vectors: the owners' routing vectors.
        shrinkage: s above.
        fallback_bias: None = no fallback; otherwise the seed's own FFN is the last expert, at the pool's mean.
    """
    vectors = vectors.astype(np.float64)
    if init in ("lda", "whitened"):
        weights = _discriminant(vectors, pool, shrinkage, cosine=init == "whitened")
        fallback_row = np.zeros(vectors.shape[1])
    else:
        rows = np.vstack([vectors, pool.mean])
        if init == "normalised":
            rows = rows / _positive(np.linalg.norm(rows, axis=1, keepdims=True))
        weights = RouterWeights(rows[:-1], np.zeros(len(vectors)), np.zeros(vectors.shape[1]))
        fallback_row = rows[-1]
    if fallback_bias is None:
        return weights
    return replace(
        weights,
        weight=np.vstack([weights.weight, fallback_row]),
        bias=np.append(weights.bias, fallback_bias),
    )


def _discriminant(
    vectors: Float64[np.ndarray, "experts dim"], pool: PoolStatistics, shrinkage: float, cosine: bool
) -> RouterWeights:
    dim = vectors.shape[1]
    regularised = pool.covariance + shrinkage * np.trace(pool.covariance) / dim * np.eye(dim)
    offsets = vectors - pool.mean
    weight = np.linalg.solve(regularised, offsets.T).T
    squared_length = (offsets * weight).sum(axis=1)  # ‖r_p − μ₀‖² in the metric Σ'⁻¹
    if cosine:
        return RouterWeights(
            weight / _positive(np.sqrt(np.maximum(squared_length, 0.0)))[:, None], np.zeros(len(vectors)), pool.mean
        )
    return RouterWeights(weight, -0.5 * squared_length, pool.mean)


def _positive(lengths: np.ndarray) -> np.ndarray:
    """Lengths to divide by: a vector of length 0 stays what it is, and its expert is never preferred."""
    return np.where(lengths > 0.0, lengths, 1.0)


def fit_temperature(logits: Float64[np.ndarray, "items experts"], owners: Float[np.ndarray, "items owners"]) -> float:
    """The temperature at which the router's probabilities predict the owners of held-out proxies best.

    Args:
        logits: at temperature 1, of all experts; a fallback's column (the last) is left out.
        owners: 1 where an owner chose the proxy, any number of them.
    """
    logits = logits[:, : owners.shape[1]]
    if owners.shape[1] < 2 or len(owners) == 0:
        return 1.0
    targets = owners / owners.sum(axis=1, keepdims=True)

    def loss(log_temperature: float) -> float:
        return -float((targets * log_softmax(logits / np.exp(log_temperature), axis=1)).sum(axis=1).mean())

    gap = float(np.ptp(logits, axis=1).mean())
    if gap == 0.0:
        return 1.0
    bounds = (np.log(gap / WIDEST), np.log(gap * WIDEST))
    best: Any = minimize_scalar(loss, bounds=bounds, method="bounded")
    return float(np.exp(best.x))


def pool_statistics(seed: SeedModel, pool: Pool, layers: Sequence[int], held_out_one_in: int) -> list[PoolStatistics]:
    """Statistics over at most 20,000 pool items in hash order, the held-out ones left out; one for each layer."""
    rows = [row for row, value in enumerate(pool.hashes) if not is_held_out(value, held_out_one_in)][:MOST_ITEMS]
    if not rows:
        raise DataError("The pool is too small: all of its items are held out.", got=f"{len(pool)} items")
    total = np.zeros((len(layers), seed.dim))
    squares = np.zeros((len(layers), seed.dim, seed.dim))
    with progress_bar("statistics of the pool", len(rows)) as bar:
        for start in range(0, len(rows), CHUNK):
            texts = pool.texts(rows[start : start + CHUNK])
            for batch, means in ffn_input_means(seed, seed.architecture, texts, layers):
                for index in range(len(layers)):
                    z = means[:, index]
                    total[index] += z.sum(axis=0)
                    squares[index] += z.T @ z
                bar.advance(len(batch))
    means = total / len(rows)
    return [
        PoolStatistics(mean, square / len(rows) - np.outer(mean, mean))
        for mean, square in zip(means, squares, strict=True)
    ]


def set_router(router: Router, weights: RouterWeights, context_weight: float) -> None:
    """Copy closed-form weights into a model's router."""
    with torch.no_grad():
        router.weight.copy_(torch.from_numpy(weights.weight))
        router.bias.copy_(torch.from_numpy(weights.bias))
        router.centre.copy_(torch.from_numpy(weights.centre))
        router.temperature.fill_(weights.temperature)
        router.context_weight.fill_(context_weight)
