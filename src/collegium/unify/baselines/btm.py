"""Branch-Train-Merge as an ensemble (Li et al. 2022, arXiv:2208.03306): the experts answer apart and are mixed.

p(class | x) = Σ_e π_e(x) p_e(class | x). The weights π are uniform, or the posterior of x's domain, or that posterior
cut to its k largest. The paper takes the posterior from the likelihoods of its language models; experts that are no
language models have none, so that here it is the one that the router's own closed form gives: it knows exactly what
the unified model's router knows, and every expert runs (k of them after the cut).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Float64
from scipy.special import log_softmax, softmax

from collegium.data.items import Item
from collegium.models.ffn_inputs import ffn_input_means
from collegium.unify.routed_model import Ingredients
from collegium.unify.router_init import fit_temperature, initial_router


def mixed(
    logits: Sequence[Float[np.ndarray, "items classes"]], weights: Float64[np.ndarray, "items experts"]
) -> Float64[np.ndarray, "items classes"]:
    """Log-probabilities of the mixture.

    Args:
        logits: of each expert.
        weights: rows sum to 1.
    """
    answers = np.stack([log_softmax(one.astype(np.float64), axis=1) for one in logits], axis=1)
    with np.errstate(divide="ignore"):
        shares = np.log(weights)[:, :, None]
    return np.logaddexp.reduce(answers + shares, axis=1)  # [items, experts, classes] → [items, classes]


def domain_posterior(ingredients: Ingredients, items: Sequence[Item]) -> Float64[np.ndarray, "items experts"]:
    """The probability of each owner's domain, by the router's closed form at its first layer."""
    router, seed = ingredients.charter.terms.router, ingredients.seed
    layer = ingredients.charter.routed_layers(seed.num_layers)[0]
    vectors = np.stack([one.routing[layer] for one in ingredients.contributions])
    weights = initial_router(router.init, vectors, ingredients.statistics[0], router.shrinkage, None)
    held_out = weights.logits(_means(ingredients, ingredients.held_out.items, layer))
    weights = replace(weights, temperature=fit_temperature(held_out, ingredients.held_out.owners))
    return softmax(weights.logits(_means(ingredients, items, layer)), axis=1)


def most_likely(
    posterior: Float64[np.ndarray, "items experts"], experts_per_item: int
) -> Float64[np.ndarray, "items experts"]:
    """The posterior of the likeliest experts alone; the others get 0."""
    ranks = (-posterior).argsort(axis=1, kind="stable").argsort(axis=1)
    kept = np.where(ranks < experts_per_item, posterior, 0.0)
    return kept / kept.sum(axis=1, keepdims=True)


def _means(ingredients: Ingredients, items: Sequence[Item], layer: int) -> Float64[np.ndarray, "items dim"]:
    seed = ingredients.seed
    means = np.zeros((len(items), seed.dim))
    for rows, batch in ffn_input_means(seed, seed.architecture, items, [layer]):
        means[rows] = batch[:, 0]
    return means
