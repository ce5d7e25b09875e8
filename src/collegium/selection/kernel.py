"""The kernel's residuals of given picks, so that every strategy can be judged by the same determinant.

`L = diag(g) (F Fᵀ + λI) diag(g)`. Of the picks in their order, `r_t = det(L_{1..t}) / det(L_{1..t−1})`; they are the
squared diagonal of R in the QR decomposition of the stacked columns `[F, √λ I]ᵀ`, which does not square the
condition number as a Cholesky decomposition of L would, times g².
"""

import numpy as np
from jaxtyping import Float64

from collegium.core.shapes import Embeddings, Scores


def log_residuals(features: Embeddings, log_relevance: Scores, ridge: float) -> Float64[np.ndarray, " items"]:
    """log r of each pick; their sum is log det L. −inf (or about −70, by rounding) where picks are dependent.

    O(m²(d + m)) time for m picks.
    """
    num_picks = len(features)
    columns = np.concatenate([np.asarray(features, np.float64), np.sqrt(ridge) * np.eye(num_picks)], axis=1).T
    diagonal = np.zeros(num_picks)
    if num_picks:
        found = np.abs(np.diag(np.linalg.qr(columns[: None if ridge > 0 else -num_picks], mode="r")))
        diagonal[: len(found)] = found  # without a ridge, picks beyond the dimension have no residual
    with np.errstate(divide="ignore"):
        return 2 * (np.log(diagonal) + np.asarray(log_relevance, np.float64))
