"""Local training alone: every client has a model of its own, and nothing leaves it; what a federation must beat.

A client trains when a round asks it to, so that it has the budget that it would have in a federation.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from collegium.federated.algorithms.fedavg import FedAvg
from collegium.federated.algorithms.one_model import PersonalSettings
from collegium.federated.protocol import Arrays, ClientData, Message
from collegium.privacy.ledger import Release


class LocalOnlySettings(PersonalSettings):
    """Settings of local training."""

    name: Literal["local-only"] = "local-only"


class LocalOnly(FedAvg):
    """A model a client; all start alike."""

    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        return [Message(client, server_round) for client in clients]

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        names = "local", str(task.client), str(task.server_round)
        own = self.trained(local_state or self.model, data, self.local, names)
        return Message(task.client, task.server_round), own

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        """There is nothing to put together."""

    def personalise(self, client: int, data: ClientData, local_state: Arrays) -> Arrays:
        return self.tuned(local_state or self.model, client, data)

    def releases(self) -> list[Release]:
        return []
