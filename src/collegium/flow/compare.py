"""Evaluates every method of a simulation on the same texts: seed, single experts, soup, unified model, oracle."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from collegium.core.artifacts import Artifact, canonical_json, read_artifact, sha256_of, writing
from collegium.core.errors import ArtifactError
from collegium.core.recipe import Recipe
from collegium.data.examples import Examples, Splits, load_splits
from collegium.data.items import as_json
from collegium.evaluation.evaluate import Correct, Domain, accuracies, evaluate, make_domain
from collegium.evaluation.perplexity import macro_average, perplexity
from collegium.evaluation.routing import evaluate_routed
from collegium.flow.baselines import baseline_answers
from collegium.flow.evaluate_model import describe_routing, routed_perplexities
from collegium.models.encoder import Encoder, embed_texts
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import Classes
from collegium.owner.charter import Charter
from collegium.owner.head import head_classes, starting_rows
from collegium.owner.validate import Contribution, read_contribution
from collegium.selection.pool import Pool
from collegium.unify.baselines.soup import soup
from collegium.unify.merge import dense_model, full_expert
from collegium.unify.routed_model import contributed_classes, gather
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
    asked = {name: [[as_json(item) for item in one.texts], one.labels, one.choices] for name, one in texts.items()}
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
    if charter.terms.task == "causal-text":
        results = _perplexities(seed, _experts(charter, seed, checked), model, texts)
    else:
        names = {name: one.train.class_names for name, one in splits.items()}
        classes = contributed_classes(charter, seed, pool, checked, hidden=names)
        seeds = _seed_classes(charter, seed, pool, splits, classes)
        domains = [make_domain(name, one, classes, recipe.prompt_of(name)) for name, one in texts.items()]
        batch_size = recipe.evaluation.batch_size
        correct, routing = _answers(seed, _experts(charter, seed, checked), model, domains, classes, seeds, batch_size)
        if recipe.evaluation.baselines:
            ingredients = replace(gather(charter, seed, pool, checked), classes=classes)
            private = {name: one.train for name, one in splits.items()}
            for name in recipe.evaluation.baselines:
                correct[name] = baseline_answers(name, ingredients, private, domains, batch_size)
        accuracy = {method: asdict(accuracies(answers)) for method, answers in correct.items()}
        results = {"accuracy": accuracy, "routing": routing}
    results["examples"] = {name: len(one) for name, one in texts.items()}
    with writing(path, "evaluation", inputs, settings) as folder:
        (folder / RESULTS).write_text(json.dumps(results, indent=1), encoding="utf-8")  # keeps the order of methods
    return read_artifact(path, "evaluation")


def _answers(
    seed: SeedModel,
    experts: Mapping[str, dict[str, Tensor]],
    model: Path,
    domains: Sequence[Domain],
    classes: Classes,
    seed_classes: Classes,
    batch_size: int,
) -> tuple[dict[str, Mapping[str, Correct]], dict[str, Any]]:
    correct: dict[str, Mapping[str, Correct]] = {"seed": evaluate(seed, domains, seed_classes, batch_size)}
    for name, encoder in _dense_models(seed, experts):
        correct[name] = evaluate(encoder, domains, classes, batch_size)
    unified = read_unified(model)
    correct["unified"], routes = evaluate_routed(unified.encoder, domains, classes, batch_size)
    correct["oracle"] = {name: correct[f"expert:{name}"][name] for name in experts}
    return correct, describe_routing(routes, unified.experts)


def _perplexities(
    seed: SeedModel, experts: Mapping[str, dict[str, Tensor]], model: Path, texts: Mapping[str, Examples]
) -> dict[str, Any]:
    found: dict[str, dict[str, float]] = {}
    for method, encoder in [("seed", seed), *_dense_models(seed, experts)]:
        found[method] = {name: perplexity(encoder, own.texts) for name, own in texts.items()}
    unified = read_unified(model)
    found["unified"], routes = routed_perplexities(unified.encoder, {name: own.texts for name, own in texts.items()})
    found["oracle"] = {name: found[f"expert:{name}"][name] for name in experts}
    return {
        "perplexity": {method: macro_average(by_domain) for method, by_domain in found.items()},
        "routing": describe_routing(routes, unified.experts),
    }


def _experts(charter: Charter, seed: SeedModel, contributions: Sequence[Contribution]) -> dict[str, dict[str, Tensor]]:
    return {one.owner: full_expert(seed, one.expert, charter.terms.training) for one in contributions}


def _dense_models(seed: SeedModel, experts: Mapping[str, dict[str, Tensor]]) -> Iterator[tuple[str, Encoder]]:
    """Each expert alone, and their soup; one model is in memory at a time."""
    for owner, tensors in experts.items():
        yield f"expert:{owner}", dense_model(seed, tensors)
    yield "soup", dense_model(seed, soup(list(experts.values())))


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
    return load_splits(owner.data or "", owner.columns.of_task(recipe.task), owner.limits, recipe.random_seed, name)


def _finished(path: Path, inputs: dict[str, str], settings: dict[str, Any]) -> Artifact | None:
    try:
        artifact = read_artifact(path, "evaluation")
    except ArtifactError:
        return None
    return artifact if (artifact.inputs, artifact.settings) == (inputs, settings) else None
