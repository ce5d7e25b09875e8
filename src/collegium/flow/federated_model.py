"""What the rounds end with: a folder with the final arrays and all that is needed to predict with them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from collegium.core.artifacts import read_artifact
from collegium.core.errors import ArtifactError
from collegium.core.load_recipe import parse_settings
from collegium.core.settings import Settings
from collegium.data.items import Item
from collegium.federated.algorithms.one_model import World
from collegium.federated.checkpoint import read_state, write_state
from collegium.federated.make_algorithm import AlgorithmSettings, make_algorithm
from collegium.federated.protocol import Algorithm, ClientData
from collegium.flow.common_features import common_features, expert_inputs

KIND = "federated-model"


class ModelSettings(Settings):
    """What the arrays mean."""

    project: str
    classes: list[str]
    common_expert: str
    inputs: str
    features: int
    shape: list[int]
    num_clients: int
    algorithm: AlgorithmSettings
    random_seed: int

    def world(self) -> World:
        """What the algorithm is made in."""
        return World(self.features, tuple(self.shape), len(self.classes), self.num_clients, self.random_seed)


class FederatedModel:
    """The model of a federation, for clients that need not have trained.

    Args:
        algorithm: with the final state.
    """

    def __init__(self, settings: ModelSettings, algorithm: Algorithm):
        self.settings, self.algorithm, self.classes = settings, algorithm, settings.classes

    def predict(self, items: Sequence[Item]) -> Float32[np.ndarray, "items classes"]:
        """Probabilities of the classes, in the order of `classes`.

        Args:
            items: texts, or pictures of the size of the clients'.

        Raises:
            DataError: pictures where the common expert reads texts, or the reverse.
        """
        features = common_features(self.settings.common_expert, items)
        inputs = expert_inputs(self.settings.inputs, items, features)
        unknown: Int64[np.ndarray, " none"] = np.empty(0, dtype=np.int64)
        return np.exp(self.algorithm.predict(ClientData(features, inputs, unknown)))


def write_model(path: Path, settings: ModelSettings, algorithm: Algorithm) -> None:
    """Write the model as an artifact; the same one is left as it is."""
    write_state(path, KIND, {}, settings.model_dump(mode="json"), algorithm.state_dict())


def load_federated(path: str | Path) -> FederatedModel:
    """The model of a folder that `write_model` wrote.

    Raises:
        ArtifactError: no such folder, or a damaged one.
    """
    artifact = read_artifact(path, KIND)
    settings = parse_settings(dict(artifact.settings), ModelSettings, source=str(path))
    algorithm = make_algorithm(settings.world(), settings.algorithm)
    try:
        algorithm.load_state_dict(read_state(Path(path)))
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{path} does not hold the arrays of its algorithm.", got=str(error)) from None
    return FederatedModel(settings, algorithm)
