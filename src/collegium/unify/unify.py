"""The coordinator's one command: check contributions, merge, set the router, tune where it helps, write the model.

Needs the charter, the pool, the seed model and the contributions; no private data. Every choice is judged on
held-out proxies and held-out pool items, which is what a coordinator really has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collegium.core.artifacts import Artifact, finished
from collegium.core.errors import InvalidContribution
from collegium.core.progress import say
from collegium.core.random_streams import stream_seed
from collegium.models.seed_model import SeedModel
from collegium.owner.charter import Charter, check_pool, check_seed
from collegium.owner.validate import Contribution, read_contribution
from collegium.selection.pool import Pool
from collegium.unify.joint_tuning import jointly_tuned
from collegium.unify.judge import flag_experts, judge_fallback
from collegium.unify.proxies import proxy_accuracy
from collegium.unify.routed_model import Ingredients, gather, routed_model
from collegium.unify.unified_folder import KIND, unified_inputs, write_unified

ROUTER_SETTINGS = ("shrinkage", "vectors")  # what a row of the router depends on beside `init`


def unify(charter: Charter, paths: Sequence[Path], pool: Pool, seed: SeedModel, destination: Path) -> Artifact:
    """Unify contributions into the model folder at `destination`; at once if it is there from the same inputs.

    Raises:
        IncompatibleSeedModel, ArtifactError: another seed model or pool than the charter's.
        InvalidContribution: a contribution that must not be merged, or two of the same owner.
    """
    check_seed(charter, seed)
    check_pool(charter, pool)
    contributions = _read_all(charter, paths, pool, seed)
    found = finished(destination, KIND, unified_inputs(charter, contributions))
    if found is not None:
        return found
    ingredients = gather(charter, seed, pool, contributions)
    model, temperatures = routed_model(ingredients)
    facts: dict[str, Any] = {
        "router_init": charter.terms.router.init,
        "router_settings": {name: getattr(charter.terms.router, name) for name in ROUTER_SETTINGS},
        "temperature": temperatures,
        "proxies": len(ingredients.proxies),
        "held_out_proxies": len(ingredients.held_out),
        "flags": flag_experts(ingredients),
        "joint_tuning": {"kept": False},
    }
    facts["fallback"] = judge_fallback(ingredients, model)  # before tuning, so that like is compared with like
    if charter.terms.joint_tuning.keep != "never" and len(ingredients.proxies):
        model, facts["joint_tuning"] = _tune(ingredients, model)
    return write_unified(destination, model, seed, ingredients.classes.public(), charter, contributions, facts)


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


def _tune(ingredients: Ingredients, model: Any) -> tuple[Any, dict[str, Any]]:
    """Tune jointly; keep the result where held-out proxies are answered better (or where the charter says so)."""
    terms = ingredients.charter.terms
    tuned = jointly_tuned(
        model, ingredients.proxies, terms.joint_tuning, stream_seed(terms.random_seed, "joint tuning")
    )
    before = proxy_accuracy(model, ingredients.held_out)
    after = proxy_accuracy(tuned, ingredients.held_out)
    better = before is not None and after is not None and after > before
    kept = terms.joint_tuning.keep == "always" or better
    return (tuned if kept else model), {"kept": kept, "accuracy_before": before, "accuracy_after": after}
