"""Loads the examples of a simulated federation, embeds them once, and shares them out among clients."""

import fcntl
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from collegium.core.artifacts import canonical_json, finished, sha256_of, writing
from collegium.core.errors import RecipeError
from collegium.core.random_streams import stream
from collegium.data.examples import load_texts
from collegium.data.items import Item, as_json
from collegium.data.partition import partition
from collegium.data.simulated_clients import concept_shift, split_clients
from collegium.federated.protocol import ClientData
from collegium.federated.recipe import DomainSettings, FederatedRecipe
from collegium.flow.common_features import common_features, expert_inputs
from collegium.flow.engines import FEATURES_FOLDER
from collegium.flow.federation import FEATURES, Federation

Rows = Int64[np.ndarray, " _"]


def gather_clients(recipe: FederatedRecipe, folder: Path, shared: Path | None = None) -> Federation:
    """Load the examples, embed them once (for all runs with the same `shared`), and share them out."""
    items, names, domains = _load(recipe)
    classes = sorted(set(names))
    labels = np.array([classes.index(name) for name in names], dtype=np.int64)
    features = _features(recipe, items, folder, shared)
    rows = [np.asarray(own, np.int64) for own in partition(names, recipe.partition, recipe.random_seed, domains)]
    if recipe.concept_groups > 1:
        meaning = concept_shift(len(rows), len(classes), recipe.concept_groups, recipe.random_seed)
        for client, own in enumerate(rows):
            labels[own] = meaning[client, labels[own]]
    data = ClientData(features, expert_inputs(recipe.inputs, items, features), labels)
    training, test = split_clients(len(rows), recipe.held_out_clients, recipe.random_seed)
    training, validation = _validation_clients(training.tolist(), len(test), recipe.random_seed)
    judges = test.tolist() if recipe.evaluation.clients == "test" else validation
    if recipe.evaluation.protocol == "zero-shot":
        return Federation(data, classes, rows, training, judges)
    parts = [_own_parts(own, client, recipe) for client, own in enumerate(rows)]
    return Federation(data, classes, [learnt for learnt, _ in parts], training, judges, [asked for _, asked in parts])


def _load(recipe: FederatedRecipe) -> tuple[list[Item], list[str], list[str]]:
    """All examples: items, names of their classes, names of their domains."""
    items: list[Item] = []
    labels: list[str] = []
    domains: list[str] = []
    given = recipe.domains or {"": DomainSettings(data=recipe.data or "", columns=recipe.columns, limit=recipe.limit)}
    for name, one in given.items():
        examples = load_texts(one.data, one.columns, one.limit, recipe.random_seed)
        if examples.labels is None:
            key = f"domains.{name}.columns.label" if name else "columns.label"
            raise RecipeError("The data of a federation need labels.", got=name or None, do=f"name the column in {key}")
        items += examples.texts
        labels += examples.labels
        domains += [name] * len(examples)
    return items, labels, domains


def _features(
    recipe: FederatedRecipe, items: Sequence[Item], folder: Path, shared: Path | None
) -> Float32[np.ndarray, "examples dim"]:
    """What the common expert says of every example; computed once, also by runs side by side, and read from disk where
    it is needed.
    """
    texts = sha256_of(canonical_json([as_json(item) for item in items]))
    inputs = {"examples": texts, "common_expert": recipe.common_expert}
    name = sha256_of(canonical_json(inputs))[:16]
    path = folder / FEATURES_FOLDER if shared is None else shared / FEATURES_FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if finished(path, "features", inputs) is None:
            found = common_features(recipe.common_expert, items)
            with writing(path, "features", inputs, {}) as building:
                np.save(building / FEATURES, found)
    return np.load(path / FEATURES, mmap_mode="r")


def _validation_clients(training: list[int], count: int, random_seed: int) -> tuple[list[int], list[int]]:
    """As many clients as judge the test, taken from those that train, for choices."""
    chosen = stream(random_seed, "validation clients").choice(training, size=count, replace=False).tolist()
    return sorted(set(training) - set(chosen)), sorted(chosen)


def _own_parts(rows: Rows, client: int, recipe: FederatedRecipe) -> tuple[Rows, Rows]:
    """What a client learns from, and what it is judged by: as many examples for choices as for the report."""
    count = max(1, round(recipe.evaluation.own_share * len(rows)))
    if len(rows) < 2 * count + 1:
        raise RecipeError(
            "A client has too few examples to be judged by some of its own.",
            got=f"{len(rows)} examples, of which 2 × {count} judge",
            expected="one that is learnt from, at least",
            do="raise partition.min_examples, or lower evaluation.own_share",
        )
    shuffled = stream(recipe.random_seed, "own examples", str(client)).permutation(rows)
    test, validation, learnt = np.split(shuffled, [count, 2 * count])
    return np.sort(learnt), np.sort(test if recipe.evaluation.clients == "test" else validation)
