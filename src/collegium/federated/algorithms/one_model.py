"""What FedAvg and its kin share: one model goes to every client of a round, comes back trained, and is averaged."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from collegium.core.random_streams import stream, stream_seed
from collegium.core.settings import Settings
from collegium.federated.local_training import Batch, LocalSettings, as_batch, train_locally
from collegium.federated.networks import NetworkSettings, build_network, load_parameters, parameters_of
from collegium.federated.protocol import Algorithm, Arrays, ClientData, Message, sorted_results, weighted_mean


@dataclass(frozen=True)
class World:
    """What all sides of a federation know.

    Attributes:
        features: length of a feature vector.
        shape: of one input of an expert.
        classes: their number.
        num_clients: all clients that may ever take part.
        initial: parameters from which networks start (the common expert's); None = random ones.
    """

    features: int
    shape: tuple[int, ...]
    classes: int
    num_clients: int
    random_seed: int
    initial: Arrays | None = None

    def network(self, settings: NetworkSettings, *names: str) -> nn.Module:
        """A network that starts from `initial`, or with the random parameters of the stream called `names`."""
        found = build_network(settings, self.shape, self.classes, stream_seed(self.random_seed, "network", *names))
        return found if self.initial is None else load_parameters(found, self.initial)


class OneModelSettings(Settings):
    """Settings of every algorithm with one model."""

    network: NetworkSettings = NetworkSettings()
    local: LocalSettings = LocalSettings()


class OneModel(Algorithm):
    """One model for all clients; a child says what a client's loss is."""

    def __init__(self, world: World, network: NetworkSettings, local: LocalSettings):
        self.world, self.network, self.local = world, network, local
        self.model = parameters_of(self.build())

    def build(self) -> nn.Module:
        """The network of client and server, as it starts."""
        return self.world.network(self.network)

    @abstractmethod
    def loss(self, module: nn.Module, start: Arrays) -> Callable[[Batch], Tensor]:
        """A client's loss of a batch.

        Args:
            start: the parameters as they came from the server.
        """

    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        return [Message(client, server_round, dict(self.model)) for client in clients]

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        module = load_parameters(self.build(), task.arrays)
        names = ("local", str(task.client), str(task.server_round))
        random = stream(self.world.random_seed, *names)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self.world.random_seed, *names))  # of losses that draw
            train_locally(module, data, self.local, random, self.loss(module, task.arrays))
        return Message(task.client, task.server_round, parameters_of(module)), {}

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        """The plain mean of this round's models: numbers of examples do not leave a client."""
        arrays = [result.arrays for result in sorted_results(results) if result.server_round == server_round]
        if arrays:
            self.model = weighted_mean(arrays, [1.0] * len(arrays))

    def predict(self, data: ClientData, local_state: Arrays | None = None) -> Float32[np.ndarray, "examples classes"]:
        module = load_parameters(self.build(), self.model)
        return log_probabilities(module, data)

    def state_dict(self) -> dict[str, Any]:
        return {"arrays": dict(self.model), "values": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model = dict(state["arrays"])


def log_probabilities(module: nn.Module, data: ClientData) -> Float32[np.ndarray, "examples classes"]:
    """Of a classifier that reads a client's inputs."""
    module.eval()
    with torch.no_grad():
        return torch.log_softmax(module(as_batch(data).inputs), dim=1).numpy()
