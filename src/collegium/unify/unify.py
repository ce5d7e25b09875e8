"""The coordinator's one command: check contributions, merge, set the router, tune where it helps, write the model.

Needs the charter, the pool, the seed model and the contributions; no private data. Every choice is judged on
held-out proxies and held-out pool items, which is what a coordinator really has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from collegium.core.artifacts import Artifact, read_artifact
from collegium.core.errors import ArtifactError, InvalidContribution
from collegium.core.progress import say
from collegium.core.random_streams import stream_seed
from collegium.models.encoder import Encoder
from collegium.models.ffn_inputs import ffn_input_means
from collegium.models.proxy_targets import proxy_targets
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import ClassSet
from collegium.owner.charter import Charter
from collegium.owner.validate import Contribution, read_contribution
from collegium.selection.pool import Pool, is_held_out
from collegium.unify.joint_tuning import jointly_tuned
from collegium.unify.merge import dense_model, full_expert, unified_model
from collegium.unify.proxies import ProxySet, proxy_accuracy, proxy_sets
from collegium.unify.router_init import (
    PoolStatistics,
    RouterWeights,
    fit_temperature,
    initial_router,
    pool_statistics,
    set_router,
)
from collegium.unify.unified_folder import KIND, unified_inputs, write_unified

MOST_JUDGED = 1000  # held-out pool items on which the fallback is judged
USELESS = 0.5  # an expert below this share of the seed's accuracy on its own held-out proxies is flagged


def unify(charter: Charter, paths: Sequence[Path], pool: Pool, seed: SeedModel, destination: Path) -> Artifact:
    """Unify contributions into the model folder at `destination`; at once if it is there from the same inputs.

    Raises:
        InvalidContribution: a contribution that must not be merged, or two of the same owner.
    """
    contributions = _read_all(charter, paths, pool, seed)
    finished = _finished(destination, unified_inputs(charter, contributions))
    if finished is not None:
        return finished
    terms = charter.terms
    layers = charter.trained_layers(seed.num_layers)
    experts = {one.owner: full_expert(seed, one.expert, terms.training) for one in contributions}
    classes = charter.classes(seed)
    proxies, held_out = proxy_sets(contributions, charter, pool, classes)
    statistics = pool_statistics(seed, pool, charter.routed_layers(seed.num_layers), terms.held_out_one_in)

    model, temperatures = _routed_model(charter, seed, experts, layers, contributions, statistics, held_out)
    facts: dict[str, Any] = {
        "router_init": terms.router.init,
        "temperature": list(temperatures.values()),
        "proxies": len(proxies.texts),
        "held_out_proxies": len(held_out.texts),
        "flags": _flags(charter, seed, experts, held_out, classes),
        "joint_tuning": {"kept": False},
    }
    if terms.joint_tuning.keep != "never":
        model, facts["joint_tuning"] = _tune(charter, seed, model, proxies, held_out, classes)
    facts["fallback"] = _judge_fallback(
        charter, seed, pool, experts, layers, contributions, statistics, held_out, model
    )
    visible = ClassSet(
        tuple(name for name in classes.names if not name[0].startswith(":")),
        classes.embeddings[[i for i, name in enumerate(classes.names) if not name[0].startswith(":")]].clone(),
    )
    return write_unified(destination, model, seed, visible, charter, contributions, facts)


def _read_all(charter: Charter, paths: Sequence[Path], pool: Pool, seed: SeedModel) -> list[Contribution]:
    found: dict[str, Contribution] = {}
    for path in paths:
        contribution = read_contribution(path, charter, pool, seed)
        if contribution.owner in found:
            raise InvalidContribution(
                f"Two contributions are of {contribution.owner}.",
                got=f"{found[contribution.owner].artifact.path} and {path}",
                expected="one for each owner",
            )
        found[contribution.owner] = contribution
    if not found:
        raise InvalidContribution("There is no contribution to unify.", expected="one or more folders")
    missing = [owner for owner in charter.owners if owner not in found]
    if missing:
        say(f"unified without {', '.join(missing)}: no contribution was given")
    return [found[owner] for owner in charter.owners if owner in found]


def _routed_model(
    charter: Charter,
    seed: SeedModel,
    experts: dict[str, dict[str, Tensor]],
    layers: Sequence[int],
    contributions: Sequence[Contribution],
    statistics: Sequence[PoolStatistics],
    held_out: ProxySet,
    fallback: bool | None = None,
) -> tuple[Any, dict[str, float]]:
    """The MoE model with routers in closed form, and the temperature of every routed layer."""
    router = charter.terms.router
    if fallback is not None:
        router = router.model_copy(update={"fallback": fallback})
    model = unified_model(seed, experts, layers, router)
    routed = charter.routed_layers(seed.num_layers)
    means = np.zeros((len(held_out.texts), len(routed), seed.dim))
    for rows, batch in ffn_input_means(seed, seed.architecture, held_out.texts, routed):
        means[rows] = batch
    temperatures = {}
    for index, layer in enumerate(routed):
        vectors = np.stack([one.routing[layer] for one in contributions])
        weights = initial_router(
            router.init,
            vectors,
            statistics[index],
            router.shrinkage,
            router.fallback_bias if router.fallback else None,
        )
        temperature = (
            fit_temperature(weights.logits(means[:, index]), held_out.owners)
            if router.temperature == "auto"
            else float(router.temperature)
        )
        weights = RouterWeights(weights.weight, weights.bias, weights.centre, temperature)
        set_router(model.routers[layer], weights, router.context_weight)
        temperatures[str(layer)] = temperature
    return model, temperatures


def _tune(
    charter: Charter, seed: SeedModel, model: Any, proxies: ProxySet, held_out: ProxySet, classes: ClassSet
) -> tuple[Any, dict[str, Any]]:
    """Tune jointly; keep the result where held-out proxies are answered better (or where the charter says so)."""
    terms = charter.terms
    random_seed = stream_seed(terms.random_seed, "joint tuning")
    tuned = jointly_tuned(model, seed, proxies, classes, terms.joint_tuning, terms.training, random_seed)
    before = proxy_accuracy(_encoder(seed, model), held_out, classes)
    after = proxy_accuracy(_encoder(seed, tuned), held_out, classes)
    better = before is not None and after is not None and after > before
    kept = terms.joint_tuning.keep == "always" or better
    return (tuned if kept else model), {"kept": kept, "accuracy_before": before, "accuracy_after": after}


def _flags(
    charter: Charter,
    seed: SeedModel,
    experts: dict[str, dict[str, Tensor]],
    held_out: ProxySet,
    classes: ClassSet,
) -> list[str]:
    """Experts that answer their own held-out proxies far worse than the seed: useless, or poisoned."""
    flags = []
    for index, (owner, tensors) in enumerate(experts.items()):
        own = held_out.of_owner(index)
        ours = proxy_accuracy(dense_model(seed, tensors), own, classes)
        seeds = proxy_accuracy(seed, own, classes)
        if ours is not None and seeds is not None and ours < USELESS * seeds:
            flags.append(
                f"{owner}'s expert answers {ours:.0%} of its own held-out proxies as they should be, the seed "
                f"{seeds:.0%}: it may be useless or poisoned"
            )
            say(f"warning: {flags[-1]}")
    return flags


def _judge_fallback(
    charter: Charter,
    seed: SeedModel,
    pool: Pool,
    experts: dict[str, dict[str, Tensor]],
    layers: Sequence[int],
    contributions: Sequence[Contribution],
    statistics: Sequence[PoolStatistics],
    held_out: ProxySet,
    model: Any,
) -> dict[str, Any]:
    """Accuracy on held-out pool items (texts of no owner's domain) with the fallback expert and without it."""
    enabled = charter.terms.router.fallback
    hashes = pool.hashes
    rows = [row for row, value in enumerate(hashes) if is_held_out(value, charter.terms.held_out_one_in)][:MOST_JUDGED]
    classes = charter.classes(seed)
    targets = proxy_targets(
        np.asarray(pool.embeddings[rows]),
        pool.labels_of(rows),
        classes,
        charter.pool_domain,
        charter.terms.training.logit_scale,
    )
    judged = ProxySet(pool.texts(rows), np.ones((len(rows), len(contributions)), np.float32), targets)
    other, _ = _routed_model(charter, seed, experts, layers, contributions, statistics, held_out, fallback=not enabled)
    ours = proxy_accuracy(_encoder(seed, model), judged, classes)
    others = proxy_accuracy(_encoder(seed, other), judged, classes)
    return {
        "enabled": enabled,
        "pool_agreement_with": ours if enabled else others,
        "pool_agreement_without": others if enabled else ours,
    }


def _encoder(seed: SeedModel, model: Any) -> Encoder:
    return Encoder(model=model, tokenizer=seed.tokenizer, pooling=seed.pooling, max_length=seed.max_length)


def _finished(destination: Path, inputs: dict[str, str]) -> Artifact | None:
    try:
        artifact = read_artifact(destination, KIND)
    except ArtifactError:
        return None
    return artifact if artifact.inputs == inputs else None
