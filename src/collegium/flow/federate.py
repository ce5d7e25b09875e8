"""A federation on one machine: data are shared out among made-up clients, who train in rounds; held-out clients judge.

    examples → features of the common expert → partition → rounds → metrics.jsonl, federation.json

Clients that judge have never trained, and their labels are used to count right answers alone (zero-shot). A killed
run goes on after its last round.
"""

import fcntl
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from collegium.core.artifacts import canonical_json, finished, sha256_of, write_file, writing
from collegium.core.errors import RecipeError
from collegium.core.progress import draws_bars, say
from collegium.core.random_streams import stream
from collegium.data.examples import load_texts
from collegium.data.images import Picture
from collegium.data.items import Item, as_json
from collegium.data.partition import describe_partition, partition
from collegium.data.simulated_clients import split_clients
from collegium.federated.algorithms.ddome import Ddome
from collegium.federated.label_prior import with_label_prior
from collegium.federated.make_algorithm import make_algorithm
from collegium.federated.protocol import Algorithm, ClientData
from collegium.federated.recipe import DomainSettings, FederatedRecipe
from collegium.federated.rounds import RoundReport, run_rounds
from collegium.flow.collapse import CollapseAlarm
from collegium.flow.engines import ENGINES, FEATURES_FOLDER
from collegium.flow.event_files import event_files
from collegium.flow.federation import FEATURES, Federation
from collegium.flow.round_metrics import RoundMetrics
from collegium.models import efficientnet
from collegium.models.encoder import embed_texts
from collegium.models.seed_model import load_seed_model
from collegium.privacy.federated_ledger import federated_ledger

METRICS, RESULT = "metrics.jsonl", "federation.json"


def federate(recipe: FederatedRecipe, folder: Path, engine: str = "in-process", shared: Path | None = None) -> Path:
    """Run all rounds in `folder`; the path of `federation.json`.

    Args:
        engine: a name of `ENGINES`; the result is the same, and a run may go on under another one.
        shared: where other runs find features of the same examples (in-process alone); None = in the folder itself.

    Raises:
        RecipeError: data without labels, or pictures for experts that do not read them.
        RunError: nobody answered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    federation = gather_clients(recipe, folder, shared)
    server = make_algorithm(federation.world(recipe.random_seed), recipe.algorithm)
    lines, collapse = RoundMetrics(folder / METRICS), CollapseAlarm(server)
    seen: dict[str, Any] = {}  # by the last evaluation

    def after(report: RoundReport) -> str:
        last = report.server_round == recipe.rounds.rounds
        due = last or report.server_round % recipe.evaluation.every == 0
        found = judge(server, map(federation.of, federation.judges)) if due else {}
        collapse.look(report.server_round, found.get("utilisation"))
        line = {**vars(report), **found}
        lines.add(line)
        record(line)
        seen.update(found)
        told = _progress(report, seen)
        if due and not draws_bars():
            say(told)
        return told

    identity = [recipe.model_dump(mode="json"), federation.content_hash]
    with event_files(folder) as record:
        ENGINES[engine](
            recipe,
            folder,
            federation,
            lambda engine: run_rounds(server, engine, recipe.rounds, identity, recipe.random_seed, folder, after),
        )
    rounds = lines.read()
    judged = [line for line in rounds if "accuracy" in line][-recipe.evaluation.averaged :]
    result = {
        "project": recipe.project,
        "algorithm": recipe.algorithm.name,
        "random_seed": recipe.random_seed,
        "accuracy": float(np.mean([line["accuracy"] for line in judged])),
        "accuracy_with_prior": float(np.mean([line["accuracy_with_prior"] for line in judged])),
        "accuracy_with_true_prior": float(np.mean([line["accuracy_with_true_prior"] for line in judged])),
        "global_accuracy": float(np.mean([line["global_accuracy"] for line in judged])),
        "by_client": np.mean([line["by_client"] for line in judged], axis=0).tolist(),
        "by_client_with_prior": np.mean([line["by_client_with_prior"] for line in judged], axis=0).tolist(),
        "utilisation": np.mean([line["utilisation"] for line in judged], axis=0).tolist(),
        "averaged_rounds": [line["server_round"] for line in judged],
        "bytes_down": sum(line["bytes_down"] for line in rounds),
        "bytes_up": sum(line["bytes_up"] for line in rounds),
        "clients": {
            "training": len(federation.training),
            "judging": len(federation.judges),
            **describe_partition(federation.rows, federation.data.labels),
        },
        "ledger": [entry.model_dump(mode="json") for entry in federated_ledger(server.releases())],
        "settings": recipe.model_dump(mode="json"),
    }
    write_file(folder / RESULT, json.dumps(result, indent=1).encode())
    return folder / RESULT


def gather_clients(recipe: FederatedRecipe, folder: Path, shared: Path | None = None) -> Federation:
    """Load the examples, embed them once (for all runs with the same `shared`), and share them out."""
    items, names, domains = _load(recipe)
    classes = sorted(set(names))
    labels = np.array([classes.index(name) for name in names], dtype=np.int64)
    features = _features(recipe, items, folder, shared)
    data = ClientData(features, expert_inputs(recipe.inputs, items, features), labels)
    rows = partition(names, recipe.partition, recipe.random_seed, domains)
    training, test = split_clients(len(rows), recipe.held_out_clients, recipe.random_seed)
    training, validation = _validation_clients(training.tolist(), len(test), recipe.random_seed)
    judges = test.tolist() if recipe.evaluation.clients == "test" else validation
    return Federation(data, classes, [np.asarray(own, np.int64) for own in rows], training, judges)


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


def judge(algorithm: Algorithm, clients: Iterable[ClientData]) -> dict[str, Any]:
    """Zero-shot accuracy of clients that never trained: their mean, all their examples together (`global`), each
    client, and the use of the experts.

    `accuracy` answers each example as the algorithm does, `accuracy_with_prior` all of a client's together, under the
    prior of the labels that they suggest (label_prior.py); neither looks at a label. `accuracy_with_true_prior` is told
    the client's class shares: no method, but what one that reads the batch for its prior can reach at most.
    """
    right, with_prior, with_true_prior, use, correct = [], [], [], [], []
    for data in clients:
        answers = algorithm.predict(data)
        correct.append(answers.argmax(axis=1) == data.labels)
        right.append(float(correct[-1].mean()))
        with_prior.append(float((with_label_prior(answers).argmax(axis=1) == data.labels).mean()))
        shares = np.bincount(data.labels, minlength=answers.shape[1]) / len(data)
        told = answers + np.log(np.maximum(shares, np.finfo(np.float64).tiny))
        with_true_prior.append(float((told.argmax(axis=1) == data.labels).mean()))
        use.append(algorithm.utilisation(data) if isinstance(algorithm, Ddome) else np.ones(1))
    return {
        "accuracy": float(np.mean(right)),
        "accuracy_with_prior": float(np.mean(with_prior)),
        "accuracy_with_true_prior": float(np.mean(with_true_prior)),
        "global_accuracy": float(np.concatenate(correct).mean()),
        "by_client": right,
        "by_client_with_prior": with_prior,
        "utilisation": np.mean(use, axis=0).tolist(),
    }


def _progress(report: RoundReport, last: Mapping[str, Any]) -> str:
    """A line about a round: who answered, and what the last evaluation found."""
    parts = [f"round {report.server_round}: {report.answered} of {report.asked} clients answered"]
    if last:
        parts.append(f"accuracy {last['accuracy']:.3f}")
        if len(last["utilisation"]) > 1:
            parts.append(f"the most used of {len(last['utilisation'])} experts has {max(last['utilisation']):.0%}")
    return ", ".join(parts)


def common_features(common_expert: str, items: Sequence[Item]) -> Float32[np.ndarray, "items dim"]:
    """What the common expert says of texts or pictures."""
    if common_expert == efficientnet.NAME:
        return efficientnet.efficientnet_features(items)
    return embed_texts(load_seed_model(common_expert), items)


def expert_inputs(
    kind: str, items: Sequence[Item], features: Float32[np.ndarray, "items dim"]
) -> Float32[np.ndarray, "items ..."]:
    """What experts read: the features themselves, or pixels from -1 to 1, [items, channels, height, width].

    Raises:
        RecipeError: pictures are wanted, and the items are texts or of several sizes.
    """
    if kind == "features":
        return features
    pictures = [item for item in items if isinstance(item, Picture)]
    if len(pictures) < len(items):
        raise RecipeError("inputs: pictures, but the data hold texts.", expected="inputs: features, or pictures")
    pixels = [picture.pixels for picture in pictures]
    if len({one.shape for one in pixels}) > 1:
        raise RecipeError("inputs: pictures, but they are not of one size.", expected="pictures of one size")
    return (np.stack(pixels).transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)


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
