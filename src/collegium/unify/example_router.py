"""Routers of a merged model: in closed form from some texts of each expert, or at random where there are none.

Ready-made fine-tunes come without routing vectors and without a public pool. With example texts the routing vector of
an expert is the mean FFN input over its texts in the seed's pass, as an owner's is; the statistics that the closed
forms need are those of the texts themselves: the mean of the experts' means, and the covariance within experts (with
texts of every expert at hand, the classical choice for discriminant analysis). Without texts nothing is known about
who knows what: the rows are small random numbers, which break the tie between experts and must be trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from collegium.core.random_streams import stream
from collegium.core.router_settings import RouterSettings
from collegium.data.items import Item
from collegium.models.ffn_inputs import ffn_input_means
from collegium.models.seed_model import SeedModel
from collegium.moe.router import Router
from collegium.unify.router_init import PoolStatistics, fit_temperature, initial_router, set_router

MOST_TEXTS = 1000  # of one expert: means settle long before
RANDOM_SCALE = 0.02  # standard deviation of random rows, as transformers initialises linear layers

State = dict[str, Float32[Tensor, "..."]]


def routers_from_examples(
    seed: SeedModel, examples: Mapping[str, Sequence[Item]], layers: Sequence[int], settings: RouterSettings
) -> dict[int, State]:
    """Layer → tensors of its router.

    Args:
        examples: expert → texts, in the order of the model's experts.
        layers: those that have a router.
    """
    means = [_means(seed, texts[:MOST_TEXTS], layers) for texts in examples.values()]
    owners = np.repeat(np.eye(len(means), dtype=np.float32), [len(one) for one in means], axis=0)
    routers = {}
    for index, layer in enumerate(layers):
        groups = [one[:, index] for one in means]
        vectors = np.stack([group.mean(axis=0) for group in groups])
        weights = initial_router(
            settings.init,
            vectors,
            PoolStatistics(vectors.mean(axis=0), _within(groups)),
            settings.shrinkage,
            settings.fallback_bias if settings.fallback else None,
        )
        temperature = (
            fit_temperature(weights.logits(np.concatenate(groups)), owners)
            if settings.temperature == "auto"
            else float(settings.temperature)
        )
        router = _router(seed.dim, len(means), settings)
        set_router(router, replace(weights, temperature=temperature), settings.context_weight)
        routers[layer] = router.state_dict()
    return routers


def random_routers(
    dim: int, num_experts: int, layers: Sequence[int], settings: RouterSettings, random_seed: int
) -> dict[int, State]:
    """Layer → tensors of an untrained router."""
    routers = {}
    for layer in layers:
        router = _router(dim, num_experts, settings)
        rows = stream(random_seed, "router", str(layer)).normal(scale=RANDOM_SCALE, size=tuple(router.weight.shape))
        with torch.no_grad():
            router.weight.copy_(torch.from_numpy(rows))
            router.context_weight.fill_(settings.context_weight)
        routers[layer] = router.state_dict()
    return routers


def _router(dim: int, num_experts: int, settings: RouterSettings) -> Router:
    return Router(
        dim,
        num_experts + settings.fallback,
        settings.experts_per_token,
        settings.weighting,
        settings.learn_context_weight,
    )


def _means(seed: SeedModel, texts: Sequence[Item], layers: Sequence[int]) -> Float64[np.ndarray, "items layers dim"]:
    means = np.zeros((len(texts), len(layers), seed.dim))
    for rows, batch in ffn_input_means(seed, seed.architecture, texts, layers):
        means[rows] = batch
    return means


def _within(groups: Sequence[Float64[np.ndarray, "_ dim"]]) -> Float64[np.ndarray, "dim dim"]:
    """Covariance around each expert's own mean, every expert counting alike."""
    return np.mean([np.cov(group, rowvar=False, bias=True) for group in groups], axis=0)
