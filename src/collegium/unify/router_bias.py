"""A bias for each owner's expert that is never positive: how much less often it is used than its vector alone says.

FlexOlmo (Shi et al. 2025, arXiv:2507.07024) learns it, so that an expert is taken only where it is better than the
public one. Here it is learnt from public texts alone: an owner's proxies should go to it, other items of the pool to
the seed's own FFN, which is the last expert.
"""

import numpy as np
from jaxtyping import Float, Float64
from scipy.optimize import minimize
from scipy.special import log_softmax

RIDGE = 1e-4  # weight of the squared biases beside the mean loss of an item


def non_positive_biases(
    logits: Float64[np.ndarray, "items experts"], owners: Float[np.ndarray, "items owners"]
) -> Float64[np.ndarray, " owners"]:
    """Biases at most 0 with which softmax(logits + bias) predicts best who should answer.

    Args:
        logits: without biases; the last column is the seed's own FFN.
        owners: 1 where an owner chose the item; a row of zeros is nobody's, and the seed's.
    """
    nobodys = (owners.sum(axis=1, keepdims=True) == 0).astype(np.float64)
    targets = np.hstack([owners.astype(np.float64), nobodys])
    targets /= targets.sum(axis=1, keepdims=True)

    def loss(biases: np.ndarray) -> tuple[float, np.ndarray]:
        logs = log_softmax(logits + np.append(biases, 0.0), axis=1)
        gradient = (np.exp(logs) - targets).mean(axis=0)[:-1] + RIDGE * biases
        return float(-(targets * logs).sum(axis=1).mean() + 0.5 * RIDGE * (biases @ biases)), gradient

    start = np.zeros(owners.shape[1])
    return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(None, 0.0)] * len(start)).x
