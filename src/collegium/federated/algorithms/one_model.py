"""What FedAvg and its kin share: one model goes to every client of a round, comes back trained, and is averaged."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from pydantic import Field
from torch import Tensor, nn

from collegium.core.random_streams import stream, stream_seed
from collegium.core.settings import Settings
from collegium.federated.local_training import Batch, LocalSettings, as_batch, train_locally
from collegium.federated.networks import Networks, NetworkSettings, build_network, parameters_of, read_by
from collegium.federated.protocol import (
    Algorithm,
    Arrays,
    ClientData,
    Message,
    sorted_results,
    weighted_mean,
    weights_of,
)


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

    def build(self, settings: NetworkSettings) -> nn.Module:
        """A network of the federation's shapes, with parameters as torch draws them."""
        return build_network(settings, self.shape_of(settings), self.classes)

    def start(self, networks: Networks, *names: str) -> Arrays:
        """Parameters to begin with: `initial`, or random ones of the stream called `names`.

        Raises:
            ValueError: `initial` is of another network.
        """
        if self.initial is not None:
            return parameters_of(networks.filled(self.initial))
        return networks.started(stream_seed(self.random_seed, "network", *names))

    def shape_of(self, settings: NetworkSettings) -> tuple[int, ...]:
        """Of one input of a network."""
        return (self.features,) if settings.reads == "features" else self.shape


class OneModelSettings(Settings):
    """Settings of every algorithm with one model."""

    network: NetworkSettings = NetworkSettings()
    local: LocalSettings = LocalSettings()


class PersonalSettings(OneModelSettings):
    """Settings of those whose clients may tune the model for themselves."""

    personal_epochs: int = Field(
        default=0,
        ge=0,
        description="passes over its own examples with which a client tunes what it got for itself, before it answers; "
        "seen in evaluation.protocol: personal",
    )


class OneModel(Algorithm):
    """One model for all clients; a child says what a client's loss is."""

    draws = False  # whether the loss draws random numbers

    def __init__(self, world: World, network: NetworkSettings, local: LocalSettings, personal_epochs: int = 0):
        self.world, self.network, self.local, self.personal_epochs = world, network, local, personal_epochs
        self.networks = Networks(self.build)
        self.model = self.start()

    def build(self) -> nn.Module:
        """The network of client and server."""
        return self.world.build(self.network)

    def start(self) -> Arrays:
        """The parameters with which the server begins."""
        return self.world.start(self.networks)

    @abstractmethod
    def loss(self, module: nn.Module, start: Arrays) -> Callable[[Batch], Tensor]:
        """A client's loss of a batch.

        Args:
            start: the parameters as they came from the server.
        """

    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        return [Message(client, server_round, dict(self.model)) for client in clients]

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        trained = self.trained(task.arrays, data, self.local, ("local", str(task.client), str(task.server_round)))
        return Message(task.client, task.server_round, trained), {}

    def trained(
        self,
        arrays: Arrays,
        data: ClientData,
        local: LocalSettings,
        names: tuple[str, ...],
        only: Sequence[str] | None = None,
    ) -> Arrays:
        """The parameters after local training.

        Args:
            names: of the random stream.
            only: names of the parameters that are trained; None = all.
        """
        module = self.networks.filled(arrays)
        random = stream(self.world.random_seed, *names)
        with torch.random.fork_rng(devices=[], enabled=self.draws):
            if self.draws:
                torch.manual_seed(stream_seed(self.world.random_seed, *names))
            train_locally(module, data, local, random, self.loss(module, arrays), only=only)
        return parameters_of(module)

    def personalise(self, client: int, data: ClientData, local_state: Arrays) -> Arrays:
        """The model, tuned on the client's own examples."""
        return self.tuned(self.model, client, data)

    def tuned(self, arrays: Arrays, client: int, data: ClientData, only: Sequence[str] | None = None) -> Arrays:
        """After `personal_epochs` of local training."""
        if not self.personal_epochs:
            return dict(arrays)
        local = self.local.model_copy(update={"epochs": self.personal_epochs})
        return self.trained(arrays, data, local, ("personal", str(client)), only)

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        """The mean of the models; numbers of examples do not leave a client, and all clients weigh alike."""
        ordered = sorted_results(results)
        if ordered:
            self.model = weighted_mean([result.arrays for result in ordered], weights_of(ordered, server_round))

    def predict(self, data: ClientData, local_state: Arrays | None = None) -> Float32[np.ndarray, "examples classes"]:
        return log_probabilities(self.networks.filled(local_state or self.model), self.network, data)

    def state_dict(self) -> dict[str, Any]:
        return {"arrays": dict(self.model), "values": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model = dict(state["arrays"])


def log_probabilities(
    module: nn.Module, network: NetworkSettings, data: ClientData
) -> Float32[np.ndarray, "examples classes"]:
    """Of a classifier with the settings `network`, for a client's examples."""
    module.eval()
    with torch.no_grad():
        return torch.log_softmax(module(read_by(network, as_batch(data))), dim=1).numpy()
