"""The average of K models, each of which a fixed group of the clients trains by FedAvg.

The baseline called "average ensembles" in the evaluation of DDOME: as many parameters as its experts, no gate. Groups
are drawn from the client's number alone. The answer is the mean of the models' probabilities.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32
from pydantic import Field
from scipy.special import logsumexp

from collegium.core.random_streams import stream_seed
from collegium.federated.algorithms.fedavg import FedAvg, FedAvgSettings
from collegium.federated.algorithms.one_model import OneModelSettings, World
from collegium.federated.protocol import Algorithm, Arrays, ClientData, Message, below, prefixed


class AverageEnsembleSettings(OneModelSettings):
    """Settings of the ensemble."""

    name: Literal["average-ensemble"] = "average-ensemble"
    num_experts: int = Field(default=5, ge=1, description="K: models, and groups of clients")


class AverageEnsemble(Algorithm):
    """K times FedAvg, on K groups of clients."""

    def __init__(self, world: World, settings: AverageEnsembleSettings):
        self.world = world
        own = FedAvgSettings(network=settings.network, local=settings.local)
        self.members = [FedAvg(world, own) for _ in range(settings.num_experts)]
        if world.initial is None:  # the same start would make them too much alike
            for index, member in enumerate(self.members):
                member.model = world.start(member.networks, f"expert {index}")

    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        return [task for client in clients for task in self._of(client).plan(server_round, [client], {})]

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        return self._of(task.client).local_update(task, data, local_state)

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        for member in self.members:
            own = [result for result in results if self._of(result.client) is member]
            member.aggregate(server_round, own, [client for client in failures if self._of(client) is member])

    def predict(self, data: ClientData, local_state: Arrays | None = None) -> Float32[np.ndarray, "examples classes"]:
        answers = np.stack([member.predict(data) for member in self.members])
        return (logsumexp(answers, axis=0) - np.log(len(self.members))).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        arrays = [prefixed(member.model, f"expert/{index}") for index, member in enumerate(self.members)]
        return {"arrays": {name: array for one in arrays for name, array in one.items()}, "values": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for index, member in enumerate(self.members):
            member.model = below(state["arrays"], f"expert/{index}")

    def _of(self, client: int) -> FedAvg:
        return self.members[stream_seed(self.world.random_seed, "group", str(client)) % len(self.members)]
