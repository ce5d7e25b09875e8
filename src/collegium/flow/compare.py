"""Evaluates every method of a simulation on the same texts: seed, single experts, soup, unified model, oracle."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from collegium.core.artifacts import Artifact, canonical_json, finished, read_artifact, sha256_of, writing
from collegium.core.recipe import Recipe, TrainingSettings
from collegium.data.examples import Examples, Splits, load_splits
from collegium.data.items import as_json
from collegium.evaluation.evaluate import accuracies, evaluate, make_domain
from collegium.evaluation.intervals import accuracy_intervals
from collegium.evaluation.perplexity import macro_average, perplexity
from collegium.evaluation.routing import evaluate_routed
from collegium.flow.baselines import Baselines
from collegium.flow.evaluate_model import describe_routing, routed_perplexities
from collegium.flow.kept_answers import Answers, answer_bytes, kept_answers
from collegium.models.encoder import embed_texts
from collegium.models.expert_tensors import dense_model, full_expert
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import Classes
from collegium.owner.charter import Charter
from collegium.owner.contribution import EXPERT
from collegium.owner.head import head_classes, starting_rows
from collegium.owner.validate import Contribution, read_contribution
from collegium.selection.pool import Pool
from collegium.unify.baselines.soup import soup
from collegium.unify.routed_model import contributed_classes, gather
from collegium.unify.unified_folder import read_unified

RESULTS, ANSWERS = "results.json", "answers.safetensors"


def compare_methods(
    path: Path,
    recipe: Recipe,
    charter: Charter,
    pool: Pool,
    seed: SeedModel,
    contributions: Sequence[Path],
    model: Path,
    kept: Path,
) -> Artifact:
    """Evaluate all methods on every owner's texts; at once if it is there already.

    The artifact holds `results.json` and, example by example, `answers.safetensors` (flow/kept_answers.py).

    Args:
        kept: folder of the answers that are not asked for twice.
    """
    splits = {name: _splits(recipe, name) for name in charter.owners}
    texts: dict[str, Examples] = {name: getattr(one, recipe.evaluation.split) for name, one in splits.items()}
    checked = [read_contribution(contribution, charter, pool, seed) for contribution in contributions]
    checked.sort(key=lambda one: charter.owners.index(one.owner))
    inputs = {
        "charter": charter.sha256,
        "model": read_artifact(model, verify=False).sha256,
        "texts": _digest(texts),
        "private": _digest({name: one.train for name, one in splits.items()}),
        **{f"contribution:{one.owner}": one.artifact.sha256 for one in checked},
    }
    settings = recipe.evaluation.model_dump(mode="json")
    found = finished(path, "evaluation", inputs, settings)
    if found is not None:
        return found
    answers: dict[str, Answers] = {}
    if charter.terms.task == "causal-text":
        results = _perplexities(seed, _experts(charter, seed, checked), model, texts)
    else:
        asking = Asking(recipe, charter, pool, seed, checked, model, splits, texts)
        answers, routing = _answers(asking, inputs, kept)
        results = {
            "accuracy": {method: asdict(accuracies(own)) for method, own in answers.items()},
            "intervals": {method: accuracy_intervals(own) for method, own in answers.items()},
            "routing": routing,
        }
    results["examples"] = {name: len(one) for name, one in texts.items()}
    with writing(path, "evaluation", inputs, settings) as folder:
        (folder / RESULTS).write_text(json.dumps(results, indent=1), encoding="utf-8")  # keeps the order of methods
        if answers:
            (folder / ANSWERS).write_bytes(answer_bytes(answers))
    return read_artifact(path, "evaluation")


@dataclass(frozen=True)
class Asking:
    """What is asked of every method, and what the methods are made of."""

    recipe: Recipe
    charter: Charter
    pool: Pool
    seed: SeedModel
    contributions: Sequence[Contribution]
    model: Path
    splits: Mapping[str, Splits]
    texts: Mapping[str, Examples]


def _answers(asking: Asking, inputs: dict[str, str], kept: Path) -> tuple[dict[str, Answers], dict[str, Any]]:
    charter, seed, pool = asking.charter, asking.seed, asking.pool
    names = {name: one.train.class_names for name, one in asking.splits.items()}
    classes = contributed_classes(charter, seed, pool, asking.contributions, hidden=names)
    domains = [make_domain(name, one, classes, asking.recipe.prompt_of(name)) for name, one in asking.texts.items()]
    prompts = [one.prompt for one in domains]
    asked = sha256_of(canonical_json([inputs["texts"], classes.sha256, prompts, seed.max_length]))
    batch_size = asking.recipe.evaluation.batch_size
    answers: dict[str, Answers] = {}

    def ask(method: str, answering: list[str], work: Callable[[], Answers]) -> None:
        found = kept_answers(kept, asked, answering, work)
        answers[method] = {domain.name: found[domain.name] for domain in domains}  # a file knows no order

    def ask_dense(tensors: Mapping[str, Tensor]) -> Answers:
        return evaluate(dense_model(seed, tensors), domains, classes, batch_size)

    own_classes = _seed_classes(charter, seed, pool, asking.splits, classes)
    answering = ["seed", seed.fingerprint, own_classes.sha256]
    ask("seed", answering, lambda: evaluate(seed, domains, own_classes, batch_size))
    training = charter.terms.training
    weights = {one.owner: _hash_of_expert(one, training) for one in asking.contributions}
    for one in asking.contributions:
        work = partial(lambda one: ask_dense(full_expert(seed, one.expert, training)), one)
        ask(f"expert:{one.owner}", ["expert", seed.fingerprint, weights[one.owner]], work)
    experts = ["soup", seed.fingerprint, *weights.values()]
    ask("soup", experts, lambda: ask_dense(soup(list(_experts(charter, seed, asking.contributions).values()))))
    unified = read_unified(asking.model)
    answers["unified"], routes = evaluate_routed(unified.encoder, domains, classes, batch_size)
    answers["oracle"] = {one.owner: answers[f"expert:{one.owner}"][one.owner] for one in asking.contributions}
    if asking.recipe.evaluation.baselines:
        ingredients = replace(gather(charter, seed, pool, asking.contributions), classes=classes)
        private = {name: one.train for name, one in asking.splits.items()}
        made_of = [charter.sha256, inputs["private"], *(one.artifact.sha256 for one in asking.contributions)]
        baselines = Baselines(ingredients, own_classes, private, domains, batch_size)
        for name in asking.recipe.evaluation.baselines:
            ask(name, [name, *made_of], partial(baselines.answers, name))
    return answers, describe_routing(routes, unified.experts)


def _digest(examples: Mapping[str, Examples]) -> str:
    """Of all examples by domain, with labels and choices."""
    values = {name: [[as_json(item) for item in one.texts], one.labels, one.choices] for name, one in examples.items()}
    return sha256_of(canonical_json(values))


def _hash_of_expert(contribution: Contribution, training: TrainingSettings) -> str:
    scale = training.lora_alpha / training.rank if training.parameters == "lora" else 1.0
    return f"{contribution.artifact.files[EXPERT]['sha256']} x {scale}"


def _perplexities(
    seed: SeedModel, experts: Mapping[str, dict[str, Tensor]], model: Path, texts: Mapping[str, Examples]
) -> dict[str, Any]:
    dense = [*experts.items(), ("soup", soup(list(experts.values())))]
    found: dict[str, dict[str, float]] = {"seed": {name: perplexity(seed, own.texts) for name, own in texts.items()}}
    for method, tensors in dense:
        encoder = dense_model(seed, tensors)  # one model is in memory at a time
        name = "soup" if method == "soup" else f"expert:{method}"
        found[name] = {domain: perplexity(encoder, own.texts) for domain, own in texts.items()}
    unified = read_unified(model)
    found["unified"], routes = routed_perplexities(unified.encoder, {name: own.texts for name, own in texts.items()})
    found["oracle"] = {name: found[f"expert:{name}"][name] for name in experts}
    return {
        "perplexity": {method: macro_average(by_domain) for method, by_domain in found.items()},
        "routing": describe_routing(routes, unified.experts),
    }


def _experts(charter: Charter, seed: SeedModel, contributions: Sequence[Contribution]) -> dict[str, dict[str, Tensor]]:
    return {one.owner: full_expert(seed, one.expert, charter.terms.training) for one in contributions}


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
