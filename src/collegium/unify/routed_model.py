"""Everything that a unified model is made of, and the model with its routers in closed form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64
from torch import Tensor

from collegium.core.router_settings import RouterSettings
from collegium.data.items import Item
from collegium.models.expert_tensors import scaled_expert
from collegium.models.ffn_inputs import ffn_input_means
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import Classes
from collegium.owner.charter import Charter
from collegium.owner.head import head_classes
from collegium.owner.validate import Contribution
from collegium.selection.pool import Pool, is_held_out
from collegium.unify.merge import unified_model
from collegium.unify.proxies import ProxySet, proxy_sets
from collegium.unify.router_bias import non_positive_biases
from collegium.unify.router_init import PoolStatistics, fit_temperature, initial_router, pool_statistics, set_router


@dataclass(frozen=True)
class Ingredients:
    """What the coordinator has once all contributions are checked.

    Attributes:
        experts: owner → FFN tensors, or LoRA factors with their scale in B; in the order of the contributions.
        proxies: the union of the owners' proxies that may be trained on.
        held_out: the proxies by which choices are judged.
        statistics: of the pool, one for each routed layer.
    """

    charter: Charter
    seed: SeedModel
    pool: Pool
    classes: Classes
    contributions: Sequence[Contribution]
    experts: dict[str, dict[str, Tensor]]
    proxies: ProxySet
    held_out: ProxySet
    statistics: Sequence[PoolStatistics]


def gather(charter: Charter, seed: SeedModel, pool: Pool, contributions: Sequence[Contribution]) -> Ingredients:
    """Find the proxies, and take the statistics of the pool."""
    classes = contributed_classes(charter, seed, pool, contributions)
    proxies, held_out = proxy_sets(contributions, charter, seed, pool, classes)
    routed = charter.routed_layers(seed.num_layers)
    return Ingredients(
        charter=charter,
        seed=seed,
        pool=pool,
        classes=classes,
        contributions=contributions,
        experts={one.owner: scaled_expert(one.expert, charter.terms.training) for one in contributions},
        proxies=proxies,
        held_out=held_out,
        statistics=pool_statistics(seed, pool, routed, charter.terms.held_out_one_in),
    )


def contributed_classes(
    charter: Charter,
    seed: SeedModel,
    pool: Pool,
    contributions: Sequence[Contribution],
    hidden: Mapping[str, Sequence[str]] | None = None,
) -> Classes:
    """All classes of a unified model: prompted names, or the contributed rows of the head.

    Args:
        hidden: class names known here that owners kept out of the charter.
    """
    if charter.terms.task == "label-head":
        return head_classes(charter, pool, {one.owner: one.head for one in contributions if one.head is not None})
    return charter.classes(seed, hidden)


def routed_model(ingredients: Ingredients, router: RouterSettings | None = None) -> tuple[Any, list[float]]:
    """The MoE model with routers in closed form, and the temperature of every routed layer.

    Args:
        router: settings for the same routed layers; None = the charter's.
    """
    charter, seed, held_out = ingredients.charter, ingredients.seed, ingredients.held_out
    router = charter.terms.router if router is None else router
    model = unified_model(seed, ingredients.experts, charter.trained_layers(seed.num_layers), router)
    routed = charter.routed_layers(seed.num_layers)
    means = _ffn_input_means(seed, held_out.items, routed)
    biased = router.owner_bias == "non-positive"
    judged, owners = _judged(ingredients, routed) if biased else (means, held_out.owners)
    temperatures = []
    for index, layer in enumerate(routed):
        weights = initial_router(
            router.init,
            np.stack([one.routing[layer] for one in ingredients.contributions]),
            ingredients.statistics[index],
            router.shrinkage,
            router.fallback_bias if router.fallback else None,
        )
        temperature = (
            fit_temperature(weights.logits(means[:, index]), held_out.owners)
            if router.temperature == "auto"
            else float(router.temperature)
        )
        if biased:
            logits = replace(weights, temperature=temperature).logits(judged[:, index])
            own = temperature * non_positive_biases(logits, owners)
            weights = replace(weights, bias=weights.bias + np.append(own, 0.0))
        set_router(model.routers[layer], replace(weights, temperature=temperature), router.context_weight)
        temperatures.append(temperature)
    return model, temperatures


def _judged(
    ingredients: Ingredients, routed: Sequence[int]
) -> tuple[Float64[np.ndarray, "items layers dim"], Float32[np.ndarray, "items owners"]]:
    """FFN inputs of the training proxies and of as many items of the pool that nobody chose, and whose they are."""
    proxies, pool, one_in = ingredients.proxies, ingredients.pool, ingredients.charter.terms.held_out_one_in
    chosen = {row for one in ingredients.contributions for row in one.proxy_rows}
    others = [row for row, value in enumerate(pool.hashes) if row not in chosen and not is_held_out(value, one_in)]
    items = [*proxies.items, *pool.texts(others[: len(proxies)])]
    nobodys = np.zeros((len(items) - len(proxies), proxies.owners.shape[1]), np.float32)
    return _ffn_input_means(ingredients.seed, items, routed), np.concatenate([proxies.owners, nobodys])


def _ffn_input_means(
    seed: SeedModel, items: Sequence[Item], routed: Sequence[int]
) -> Float64[np.ndarray, "items layers dim"]:
    means = np.zeros((len(items), len(routed), seed.dim))
    for rows, batch in ffn_input_means(seed, seed.architecture, items, routed):
        means[rows] = batch
    return means
