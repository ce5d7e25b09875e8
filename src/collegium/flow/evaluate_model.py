"""Evaluates a unified model on the test data of one or more owners, on whatever machine those data are."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collegium.core.recipe import DEFAULT_PROMPTS, OwnerRecipe
from collegium.data.examples import Examples, Splits, load_splits
from collegium.data.items import Item
from collegium.evaluation.evaluate import Correct, accuracies, make_domain
from collegium.evaluation.perplexity import macro_average, perplexity
from collegium.evaluation.routing import RoutedTokens, Routes, evaluate_routed, sequence_routing
from collegium.models.choices import Choices
from collegium.models.encoder import Encoder
from collegium.models.seed_model import load_seed_model
from collegium.models.tasks import Classes, class_set
from collegium.unify.unified_folder import UnifiedModel, read_unified

BATCH_SIZE = 64


def evaluate_model(
    model: Path, owners: Sequence[OwnerRecipe], split: str, seed_model: str | None = None
) -> dict[str, Any]:
    """Accuracies, routing and speed.

    Args:
        split: `test` or `validation`, drawn by the charter's random seed as in training.
        seed_model: embeds class names that the model does not carry.

    Raises:
        DataError: faulty data, or labels that the model does not know.
    """
    unified = read_unified(model)
    random_seed = unified.facts["random_seed"]
    task = unified.facts["task"]
    splits = {
        owner.name: load_splits(owner.data, owner.columns.of_task(task), owner.limits, random_seed, owner.name)
        for owner in owners
    }
    texts: dict[str, Examples] = {name: getattr(one, split) for name, one in splits.items()}
    start = time.perf_counter()
    results: dict[str, Any] = {}
    if task == "causal-text":
        found, routes = routed_perplexities(unified.encoder, {name: one.texts for name, one in texts.items()})
        results["perplexity"] = macro_average(found)
    else:
        correct, routes = _answers(unified, splits, texts, seed_model)
        results["accuracy"] = asdict(accuracies(correct))
    seconds = time.perf_counter() - start
    examples = {name: len(one) for name, one in texts.items()}
    return {
        **results,
        "examples": examples,
        "routing": describe_routing(routes, unified.experts),
        "texts_per_second": sum(examples.values()) / seconds,
    }


def _answers(
    unified: UnifiedModel, splits: Mapping[str, Splits], texts: Mapping[str, Examples], seed_model: str | None
) -> tuple[dict[str, Correct], dict[str, Routes]]:
    names = {name: one.train.class_names for name, one in splits.items()}
    classes = _with_private_names(unified, names, seed_model)
    domains = [make_domain(name, one, classes, _prompt(unified, name)) for name, one in texts.items()]
    return evaluate_routed(unified.encoder, domains, classes, BATCH_SIZE)


def describe_routing(routes: Mapping[str, Routes], experts: Sequence[str]) -> dict[str, Any]:
    """Routing as `summary.json` has it: `sequence`, `experts`, and shares `by_layer`, by domain."""
    layers = next(iter(routes.values())).shares
    return {
        "sequence": sequence_routing(routes, experts),
        "experts": list(experts),
        "by_layer": {
            str(layer): {
                name: [round(share, 6) for share in found.shares[layer].tolist()] for name, found in routes.items()
            }
            for layer in layers
        },
    }


def routed_perplexities(
    encoder: Encoder, texts: Mapping[str, Sequence[Item]]
) -> tuple[dict[str, float], dict[str, Routes]]:
    """Domain → perplexity of a unified model, and domain → routes."""
    found, routes = {}, {}
    for name, own in texts.items():
        watch = RoutedTokens(encoder, len(own))
        found[name] = perplexity(encoder, own, watch)
        routes[name] = watch.routes()
    return found, routes


def _with_private_names(unified: UnifiedModel, names: dict[str, list[str]], seed_model: str | None) -> Classes:
    """The model's classes, and those of owners who kept theirs out of the charter."""
    known = unified.classes
    missing = [name for name in names if names[name] and name not in known.domains]
    prompts = {name: _prompt(unified, name) for name in missing}
    if isinstance(known, Choices):
        hidden = tuple((name, label) for name in missing for label in names[name])
        return known + Choices(hidden, {name: prompts[name] for name in missing})
    if not missing or seed_model is None:
        return known
    seed = load_seed_model(seed_model, unified.facts["max_length"])
    domains = {name: (prompts[name], names[name]) for name in missing}
    return known + class_set(seed, domains, unified.facts["logit_scale"])


def _prompt(unified: UnifiedModel, owner: str) -> str:
    return unified.facts["prompts"].get(owner, DEFAULT_PROMPTS[unified.facts["task"]])
