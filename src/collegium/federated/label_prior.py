"""What a client's unlabelled examples say of its classes: the prior of the labels by EM, and the answers under it.

Saerens, Latinne, Decaestecker 2002, "Adjusting the outputs of a classifier to new a priori probabilities: a simple
procedure", Neural Computation 14(1), equations 4 and 5:

    prior_t+1(y) = mean over examples of p_t(y | x)
    p_t+1(y | x) ∝ prior_t+1(y) / prior(y) · p(y | x)

The prior under which a federation was trained would be the mean over clients, and no count of classes leaves a client.
So it is taken to be equal for all classes. No label is looked at; all examples of a client answer together, so an
answer depends on which others stand beside it. A step is two products of the matrix of probabilities with a vector.
"""

import numpy as np
from jaxtyping import Float, Float32
from scipy.special import log_softmax

STEPS = 100
NEAR = 1e-4  # change of the prior (L1) at which it has settled


def with_label_prior(
    answers: Float[np.ndarray, "examples classes"],
) -> Float32[np.ndarray, "examples classes"]:
    """Log-probabilities under the prior that the examples themselves suggest.

    Args:
        answers: log-probabilities under equal priors, of all examples of one client.
    """
    likelihood = answers.astype(np.float64)
    scaled = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    prior = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(STEPS):
        before, prior = prior, prior * (scaled.T @ (1 / (scaled @ prior))) / len(scaled)
        if np.abs(prior - before).sum() < NEAR:
            break
    return log_softmax(likelihood + np.log(np.maximum(prior, np.finfo(np.float64).tiny)), axis=1).astype(np.float32)
