"""A router on the token alone, without a bias, that imitates another router's decisions (multinomial regression).

Fitted in float64 by L-BFGS on inputs that are scaled, never centred: a centre would be a bias. The public texts seldom
use the experts alike (a fallback takes nearly all of them), and a plain fit answers with the most used one wherever it
doubts. So an expert's tokens weigh by the inverse square root of their share: a little less agreement on the public
texts themselves than plain, and far more hits for an expert with few tokens (docs/lab-notes.md).
"""

import numpy as np
from jaxtyping import Float, Float64
from scipy.optimize import minimize
from scipy.special import log_softmax

RIDGE = 1e-4  # weight of the squared length of the scaled rows, beside the mean loss of a token
MOST_STEPS = 200


def imitating_rows(
    inputs: Float[np.ndarray, "tokens dim"], targets: Float64[np.ndarray, "tokens experts"]
) -> Float64[np.ndarray, "experts dim"]:
    """Rows W for which softmax(W z) predicts the targets best.

    Args:
        inputs: the FFN inputs z of the layer.
        targets: what the other router decided, as probabilities: one 1 in a row, or soft.
    """
    scale = np.sqrt(np.mean(np.square(inputs, dtype=np.float64), axis=0))
    scale = np.where(scale > 0.0, scale, 1.0)
    scaled = inputs / scale  # float64
    balanced = targets / np.sqrt(np.maximum(targets.sum(axis=0), 1.0))
    balanced = balanced / balanced.sum()
    weights = balanced.sum(axis=1, keepdims=True)
    shape = (targets.shape[1], inputs.shape[1])

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        rows = flat.reshape(shape)
        logs = log_softmax(scaled @ rows.T, axis=1)
        gradient = (weights * np.exp(logs) - balanced).T @ scaled + RIDGE * rows
        return float(-(balanced * logs).sum() + 0.5 * RIDGE * (flat @ flat)), gradient.ravel()

    found = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS})
    return found.x.reshape(shape) / scale
