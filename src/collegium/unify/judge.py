"""What a coordinator can judge without private data: held-out proxies, and held-out items of the pool."""

from typing import Any

import numpy as np
from sklearn.metrics import cohen_kappa_score

from collegium.core.progress import say
from collegium.models.expert_tensors import dense_model
from collegium.owner.exercises import proxy_exercises
from collegium.selection.pool import is_held_out
from collegium.unify.proxies import ProxySet, proxy_accuracy
from collegium.unify.routed_model import Ingredients, routed_model

MOST_JUDGED = 300  # held-out pool items on which the fallback is judged, in hash order
USELESS = 0.1  # Cohen's κ on an expert's own held-out proxies below which it is flagged
FEWEST = 8  # held-out proxies below which κ says nothing


def flag_experts(ingredients: Ingredients) -> list[str]:
    """Experts whose answers to their own held-out proxies agree with the right ones no better than chance.

    Cohen's κ is 0 for random answers and for a constant one, 1 for the right ones; honest experts lie far above the
    limit even where they moved away from the seed.
    """
    flags = []
    for index, (owner, tensors) in enumerate(ingredients.experts.items()):
        own = ingredients.held_out.of_owner(index)
        if len(own) < FEWEST:
            continue
        answers, right = own.exercises.answers(dense_model(ingredients.seed, tensors).model)
        if len(set(right.tolist())) < 2:
            continue
        agreement = float(cohen_kappa_score(right, answers))
        if agreement < USELESS:
            flags.append(
                f"{owner}'s expert answers its own held-out proxies no better than chance (κ = {agreement:.2f} over "
                f"{len(own)}): it may be useless or poisoned"
            )
            say(f"warning: {flags[-1]}")
    return flags


def judge_fallback(ingredients: Ingredients, model: Any) -> dict[str, Any]:
    """Accuracy on held-out pool items, which are of no owner's domain, with the fallback expert and without it."""
    terms, pool = ingredients.charter.terms, ingredients.pool
    enabled = terms.router.fallback
    held_out = [row for row, value in enumerate(pool.hashes) if is_held_out(value, terms.held_out_one_in)]
    rows = held_out[:MOST_JUDGED]
    exercises = proxy_exercises(ingredients.charter, ingredients.seed, pool, rows, ingredients.classes)
    judged = ProxySet(exercises, np.ones((len(rows), len(ingredients.contributions)), np.float32))
    other_settings = terms.router.model_copy(update={"fallback": not enabled, "owner_bias": "none"})
    other, _ = routed_model(ingredients, other_settings)
    ours = proxy_accuracy(model, judged)
    others = proxy_accuracy(other, judged)
    return {
        "enabled": enabled,
        "pool_agreement_with": ours if enabled else others,
        "pool_agreement_without": others if enabled else ours,
    }
