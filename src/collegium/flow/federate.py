"""A federation on one machine: data are shared out among made-up clients, who train in rounds; held-out clients judge.

    examples → features of the common expert → partition → rounds → metrics.jsonl, federation.json

Clients that judge have never trained, and their labels are used to count right answers alone (zero-shot). A killed
run goes on after its last round.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from collegium.core.artifacts import canonical_json, finished, sha256_of, write_file, writing
from collegium.core.errors import RecipeError
from collegium.core.progress import say
from collegium.core.random_streams import stream
from collegium.data.examples import Examples, load_texts
from collegium.data.images import Picture
from collegium.data.items import as_json
from collegium.data.partition import describe_partition, partition
from collegium.data.simulated_clients import split_clients
from collegium.federated.algorithms.ddome import Ddome
from collegium.federated.algorithms.one_model import World
from collegium.federated.client_state import ClientStates
from collegium.federated.in_process import InProcess
from collegium.federated.make_algorithm import make_algorithm
from collegium.federated.protocol import Algorithm, ClientData
from collegium.federated.recipe import FederatedRecipe
from collegium.federated.rounds import RoundReport, run_rounds
from collegium.models import efficientnet
from collegium.models.encoder import embed_texts
from collegium.models.seed_model import load_seed_model

METRICS, RESULT = "metrics.jsonl", "federation.json"
FEATURES = "features.npy"


@dataclass(frozen=True)
class Federation:
    """Who is in it, and what they hold.

    Attributes:
        data: all examples; a client has some rows of them.
        rows: by client.
        judges: clients that never train.
    """

    data: ClientData
    classes: list[str]
    rows: list[Int64[np.ndarray, " _"]]
    training: list[int]
    judges: list[int]

    def of(self, client: int) -> ClientData:
        return self.data.take(self.rows[client])


def federate(recipe: FederatedRecipe, folder: Path) -> Path:
    """Run all rounds in `folder`; the path of `federation.json`.

    Raises:
        RecipeError: data without labels, or pictures for experts that do not read them.
        RunError: nobody answered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    federation = gather_clients(recipe, folder)
    data = federation.data
    world = World(
        features=data.features.shape[1],
        shape=data.inputs.shape[1:],
        classes=len(federation.classes),
        num_clients=len(federation.rows),
        random_seed=recipe.random_seed,
    )
    server, client_side = (make_algorithm(world, recipe.algorithm) for _ in range(2))
    engine = InProcess(client_side, federation.of, lambda: federation.training, ClientStates(folder / "clients"))
    lines = _Metrics(folder / METRICS)

    def after(report: RoundReport) -> None:
        last = report.server_round == recipe.rounds.rounds
        due = last or report.server_round % recipe.evaluation.every == 0
        found = judge(server, [federation.of(client) for client in federation.judges]) if due else {}
        if isinstance(server, Ddome) and due and (collapsed := server.collapsed_to()) is not None:
            say(f"round {report.server_round}: nine of ten clients want expert {collapsed}; the gate has collapsed")
        lines.add({**vars(report), **found})

    identity = [recipe.model_dump(mode="json"), sha256_of(data.features.tobytes() + data.labels.tobytes())]
    run_rounds(server, engine, recipe.rounds, identity, recipe.random_seed, folder, after)
    rounds = lines.read()
    judged = [line for line in rounds if "accuracy" in line][-recipe.evaluation.averaged :]
    result = {
        "project": recipe.project,
        "algorithm": recipe.algorithm.name,
        "random_seed": recipe.random_seed,
        "accuracy": float(np.mean([line["accuracy"] for line in judged])),
        "by_client": np.mean([line["by_client"] for line in judged], axis=0).tolist(),
        "utilisation": np.mean([line["utilisation"] for line in judged], axis=0).tolist(),
        "averaged_rounds": [line["server_round"] for line in judged],
        "bytes_down": sum(line["bytes_down"] for line in rounds),
        "bytes_up": sum(line["bytes_up"] for line in rounds),
        "clients": {
            "training": len(federation.training),
            "judging": len(federation.judges),
            **describe_partition(federation.rows, federation.data.labels),
        },
        "settings": recipe.model_dump(mode="json"),
    }
    write_file(folder / RESULT, json.dumps(result, indent=1).encode())
    return folder / RESULT


def gather_clients(recipe: FederatedRecipe, folder: Path) -> Federation:
    """Load the examples, embed them once, and share them out."""
    examples = load_texts(recipe.data, recipe.columns, recipe.limit, recipe.random_seed)
    if examples.labels is None:
        raise RecipeError("The data of a federation need labels.", do="name the column in columns.label")
    classes = examples.class_names
    labels = np.array([classes.index(label) for label in examples.labels], dtype=np.int64)
    features = _features(recipe, examples, folder / "features")
    data = ClientData(features, _inputs(recipe, examples, features), labels)
    rows = partition(examples.labels, recipe.partition, recipe.random_seed)
    training, test = split_clients(len(rows), recipe.held_out_clients, recipe.random_seed)
    training, validation = _validation_clients(training.tolist(), len(test), recipe.random_seed)
    judges = test.tolist() if recipe.evaluation.clients == "test" else validation
    return Federation(data, classes, [np.asarray(own, np.int64) for own in rows], training, judges)


def judge(algorithm: Algorithm, clients: Sequence[ClientData]) -> dict[str, Any]:
    """Zero-shot accuracy of clients that never trained: their mean, each, and the use of the experts."""
    right = [float((algorithm.predict(data).argmax(axis=1) == data.labels).mean()) for data in clients]
    use = [algorithm.utilisation(data) for data in clients] if isinstance(algorithm, Ddome) else []
    shares = np.mean(use, axis=0).tolist() if use else [1.0]
    return {"accuracy": float(np.mean(right)), "by_client": right, "utilisation": shares}


class _Metrics:
    """A line of JSON for each round; of a round that a resumed run does again the new one stays."""

    def __init__(self, path: Path):
        self.path, self.trimmed = path, False

    def read(self) -> list[dict[str, Any]]:
        """All whole lines: that of a killed process may be half written."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def add(self, line: dict[str, Any]) -> None:
        if not self.trimmed:
            kept = [one for one in self.read() if one["server_round"] < line["server_round"]]
            write_file(self.path, "".join(json.dumps(one) + "\n" for one in kept).encode())
            self.trimmed = True
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _features(recipe: FederatedRecipe, examples: Examples, path: Path) -> Float32[np.ndarray, "examples dim"]:
    """What the common expert says of every example; computed once."""
    texts = sha256_of(canonical_json([as_json(item) for item in examples.texts]))
    inputs = {"examples": texts, "common_expert": recipe.common_expert}
    if finished(path, "features", inputs) is None:
        found = (
            efficientnet.efficientnet_features(examples.texts)
            if recipe.common_expert == efficientnet.NAME
            else embed_texts(load_seed_model(recipe.common_expert), examples.texts)
        )
        with writing(path, "features", inputs, {}) as folder:
            np.save(folder / FEATURES, found)
    return np.load(path / FEATURES)


def _inputs(
    recipe: FederatedRecipe, examples: Examples, features: Float32[np.ndarray, "examples dim"]
) -> Float32[np.ndarray, "examples ..."]:
    if recipe.inputs == "features":
        return features
    pictures = [item for item in examples.texts if isinstance(item, Picture)]
    if len(pictures) < len(examples.texts):
        raise RecipeError("inputs: pictures, but the data hold texts.", expected="inputs: features, or pictures")
    pixels = [picture.pixels for picture in pictures]
    if len({one.shape for one in pixels}) > 1:
        raise RecipeError("inputs: pictures, but they are not of one size.", expected="pictures of one size")
    return (np.stack(pixels).transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)


def _validation_clients(training: list[int], count: int, random_seed: int) -> tuple[list[int], list[int]]:
    """As many clients as judge the test, taken from those that train, for choices."""
    chosen = stream(random_seed, "validation clients").choice(training, size=count, replace=False).tolist()
    return sorted(set(training) - set(chosen)), sorted(chosen)
