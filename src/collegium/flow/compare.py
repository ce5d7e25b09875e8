"""Evaluates every method of a simulation on the same texts: seed, single experts, soup, unified model, oracle."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collegium.core.artifacts import Artifact, canonical_json, read_artifact, sha256_of, writing
from collegium.core.errors import ArtifactError
from collegium.core.recipe import Recipe
from collegium.data.examples import Examples, Splits, load_splits
from collegium.data.items import as_json
from collegium.evaluation.evaluate import Correct, Domain, accuracies, evaluate, make_domain
from collegium.evaluation.routing import evaluate_routed
from collegium.flow.evaluate_model import describe_routing
from collegium.models.encoder import embed_texts
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import Classes
from collegium.owner.charter import Charter
from collegium.owner.head import head_classes, starting_rows
from collegium.owner.validate import read_contribution
from collegium.selection.pool import Pool
from collegium.unify.baselines.soup import soup
from collegium.unify.merge import dense_model, full_expert
from collegium.unify.routed_model import contributed_classes
from collegium.unify.unified_folder import read_unified

RESULTS = "results.json"


def compare_methods(
    path: Path,
    recipe: Recipe,
    charter: Charter,
    pool: Pool,
    seed: SeedModel,
    contributions: Sequence[Path],
    model: Path,
) -> Artifact:
    """Evaluate all methods on every owner's texts and write `results.json`; at once if it is there already."""
    splits = {name: _splits(recipe, name) for name in charter.owners}
    texts: dict[str, Examples] = {name: getattr(one, recipe.evaluation.split) for name, one in splits.items()}
    checked = [read_contribution(contribution, charter, pool, seed) for contribution in contributions]
    checked.sort(key=lambda one: charter.owners.index(one.owner))
    asked = {name: [[as_json(item) for item in one.texts], one.labels] for name, one in texts.items()}
    inputs = {
        "charter": charter.sha256,
        "model": read_artifact(model, verify=False).sha256,
        "texts": sha256_of(canonical_json(asked)),
        **{f"contribution:{one.owner}": one.artifact.sha256 for one in checked},
    }
    settings = recipe.evaluation.model_dump(mode="json")
    finished = _finished(path, inputs, settings)
    if finished is not None:
        return finished
    names = {name: sorted(set(one.train.labels or [])) for name, one in splits.items()}
    classes = contributed_classes(charter, seed, pool, checked, hidden=names)
    domains = [make_domain(name, one, classes) for name, one in texts.items()]
    batch_size = recipe.evaluation.batch_size

    correct: dict[str, Mapping[str, Correct]] = {
        "seed": evaluate(seed, domains, _seed_classes(charter, seed, pool, splits, classes), batch_size)
    }
    experts = {one.owner: full_expert(seed, one.expert, charter.terms.training) for one in checked}
    for owner, tensors in experts.items():
        correct[f"expert:{owner}"] = evaluate(dense_model(seed, tensors), domains, classes, batch_size)
    correct["soup"] = evaluate(dense_model(seed, soup(list(experts.values()))), domains, classes, batch_size)
    routing, correct["unified"] = _unified(model, domains, classes, batch_size)
    correct["oracle"] = {name: correct[f"expert:{name}"][name] for name in experts}
    results = {
        "accuracy": {method: asdict(accuracies(answers)) for method, answers in correct.items()},
        "examples": {domain.name: len(domain.texts) for domain in domains},
        "routing": routing,
    }
    with writing(path, "evaluation", inputs, settings) as folder:
        (folder / RESULTS).write_text(json.dumps(results, indent=1), encoding="utf-8")  # keeps the order of methods
    return read_artifact(path, "evaluation")


def _seed_classes(
    charter: Charter, seed: SeedModel, pool: Pool, splits: Mapping[str, Splits], classes: Classes
) -> Classes:
    """What the seed answers by: the classes of all methods; with a head, the rows from which owners started."""
    if charter.terms.task != "label-head":
        return classes
    heads = {}
    for name in dict.fromkeys(owner for owner, _ in classes.public().names):
        train = splits[name].train
        labels = charter.terms.owners[name].labels or []
        heads[name] = starting_rows(embed_texts(seed, train.texts), train.labels or [], labels)
    return head_classes(charter, pool, heads)


def _splits(recipe: Recipe, name: str) -> Splits:
    owner = recipe.owners[name]
    return load_splits(owner.data or "", owner.columns, owner.limits, recipe.random_seed, name)


def _unified(
    path: Path, domains: Sequence[Domain], classes: Classes, batch_size: int
) -> tuple[dict[str, Any], dict[str, Correct]]:
    unified = read_unified(path)
    answers = evaluate_routed(unified.encoder, domains, classes, batch_size)
    routing = describe_routing(answers, unified.experts)
    return routing, {name: routed.correct for name, routed in answers.items()}


def _finished(path: Path, inputs: dict[str, str], settings: dict[str, Any]) -> Artifact | None:
    try:
        artifact = read_artifact(path, "evaluation")
    except ArtifactError:
        return None
    return artifact if (artifact.inputs, artifact.settings) == (inputs, settings) else None
