"""What a coordinator can judge without private data: held-out proxies, and held-out items of the pool."""

from typing import Any

import numpy as np

from collegium.core.progress import say
from collegium.models.proxy_targets import proxy_targets
from collegium.selection.pool import is_held_out
from collegium.unify.merge import dense_model
from collegium.unify.proxies import ProxySet, proxy_accuracy
from collegium.unify.routed_model import Ingredients, routed_model

MOST_JUDGED = 1000  # held-out pool items on which the fallback is judged, in hash order
USELESS = 0.5  # an expert below this share of the seed's accuracy on its own held-out proxies is flagged


def flag_experts(ingredients: Ingredients) -> list[str]:
    """Experts that answer their own held-out proxies far worse than the seed, or no better than a constant would."""
    flags = []
    for index, (owner, tensors) in enumerate(ingredients.experts.items()):
        own = ingredients.held_out.of_owner(index)
        ours = proxy_accuracy(dense_model(ingredients.seed, tensors), own, ingredients.classes)
        seeds = proxy_accuracy(ingredients.seed, own, ingredients.classes)
        if ours is None or seeds is None:
            continue
        common = _commonest(own)
        if ours < USELESS * seeds or ours <= common < seeds:
            flags.append(
                f"{owner}'s expert answers {ours:.0%} of its own held-out proxies as they should be, the seed "
                f"{seeds:.0%}: it may be useless or poisoned"
            )
            say(f"warning: {flags[-1]}")
    return flags


def _commonest(proxies: ProxySet) -> float:
    """Accuracy of always giving the commonest answer."""
    answers = proxies.targets.probabilities.argmax(axis=1)
    return float(np.bincount(answers).max() / len(answers))


def judge_fallback(ingredients: Ingredients, model: Any) -> dict[str, Any]:
    """Accuracy on held-out pool items, which are of no owner's domain, with the fallback expert and without it."""
    terms, pool = ingredients.charter.terms, ingredients.pool
    enabled = terms.router.fallback
    held_out = [row for row, value in enumerate(pool.hashes) if is_held_out(value, terms.held_out_one_in)]
    rows = held_out[:MOST_JUDGED]
    targets = proxy_targets(
        np.asarray(pool.embeddings[rows]),
        pool.labels_of(rows),
        ingredients.classes,
        ingredients.charter.pool_domain,
        terms.training.logit_scale,
    )
    nobodys = np.ones((len(rows), len(ingredients.contributions)), np.float32)
    judged = ProxySet(pool.texts(rows), nobodys, targets)
    other, _ = routed_model(ingredients, fallback=not enabled)
    ours = proxy_accuracy(ingredients.encoder(model), judged, ingredients.classes)
    others = proxy_accuracy(ingredients.encoder(other), judged, ingredients.classes)
    return {
        "enabled": enabled,
        "pool_agreement_with": ours if enabled else others,
        "pool_agreement_without": others if enabled else ours,
    }
