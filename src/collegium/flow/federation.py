"""Who is in a simulated federation and what they hold; on disk as arrays that processes map and share."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from collegium.core.artifacts import writing
from collegium.federated.algorithms.one_model import World
from collegium.federated.protocol import ClientData

FEATURES, INPUTS, LABELS, ROWS, NAMES = "features.npy", "inputs.npy", "labels.npy", "rows.npy", "federation.json"
KIND = "federation"


@dataclass(frozen=True)
class Federation:
    """Who is in it, and what they hold.

    Attributes:
        data: all examples; a client has some rows of them.
        rows: by client; what it learns from.
        judges: clients that never train.
        asked: by client, rows that it holds back and is judged by; None where `judges` alone are, by all of theirs.
    """

    data: ClientData
    classes: list[str]
    rows: list[Int64[np.ndarray, " _"]]
    training: list[int]
    judges: list[int]
    asked: list[Int64[np.ndarray, " _"]] | None = None

    def of(self, client: int) -> ClientData:
        return self.data.take(self.rows[client])

    def asked_of(self, client: int) -> ClientData:
        """What a client is judged by."""
        assert self.asked is not None
        return self.data.take(self.asked[client])

    def world(self, random_seed: int) -> World:
        """What all sides know."""
        return World(
            features=self.data.features.shape[1],
            shape=self.data.inputs.shape[1:],
            classes=len(self.classes),
            num_clients=len(self.rows),
            random_seed=random_seed,
        )

    @cached_property
    def content_hash(self) -> str:
        """sha256 of what is learnt from, features and labels, in hex."""
        found = hashlib.sha256(np.ascontiguousarray(self.data.features).data)
        found.update(np.ascontiguousarray(self.data.labels).data)
        return found.hexdigest()


def write_federation(federation: Federation, features: Path, path: Path) -> None:
    """Write all but the features, which are on disk at `features` already, as an artifact at `path`."""
    values = {
        "classes": federation.classes,
        "training": federation.training,
        "judges": federation.judges,
        "sizes": [len(own) for own in federation.rows],
        "features": str(features.absolute()),
    }
    with writing(path, KIND, {"content": federation.content_hash}, {}) as folder:
        (folder / NAMES).write_text(json.dumps(values))
        np.save(folder / LABELS, federation.data.labels)
        np.save(folder / ROWS, np.concatenate(federation.rows))
        if federation.data.inputs is not federation.data.features:
            np.save(folder / INPUTS, federation.data.inputs)


def open_federation(path: Path) -> Federation:
    """What `write_federation` wrote; examples are read from disk when a client's are taken."""
    values = json.loads((path / NAMES).read_text())
    features = np.load(values["features"], mmap_mode="r")
    inputs = np.load(path / INPUTS, mmap_mode="r") if (path / INPUTS).is_file() else features
    rows = np.split(np.load(path / ROWS), np.cumsum(values["sizes"])[:-1])
    data = ClientData(features, inputs, np.load(path / LABELS))
    return Federation(data, values["classes"], rows, values["training"], values["judges"])
