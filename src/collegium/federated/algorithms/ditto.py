"""Ditto: beside FedAvg's model every client has one of its own, which is kept near it.

Li, Hu, Beirami, Smith 2021, "Ditto: Fair and Robust Federated Learning Through Personalization", arXiv:2012.04221,
algorithm 1: min over v of F_i(v) + λ/2 ‖v − w‖², where w is the model that came from the server.
"""

from typing import Literal

from pydantic import Field

from collegium.core.random_streams import stream
from collegium.federated.algorithms.fedavg import FedAvg
from collegium.federated.algorithms.fedprox import kept_near
from collegium.federated.algorithms.one_model import PersonalSettings, World
from collegium.federated.local_training import train_locally
from collegium.federated.networks import parameters_of
from collegium.federated.protocol import Arrays, ClientData, Message


class DittoSettings(PersonalSettings):
    """Settings of Ditto; `local` trains both models."""

    name: Literal["ditto"] = "ditto"
    pull: float = Field(
        default=0.1, ge=0, description="λ: weight of the distance to the server's model; 0 = local only"
    )


class Ditto(FedAvg):
    """FedAvg, and a personal model that stays with the client."""

    def __init__(self, world: World, settings: DittoSettings):
        super().__init__(world, settings)
        self.pull = settings.pull

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        result, _ = super().local_update(task, data, {})
        own = self._pulled(local_state or task.arrays, task.arrays, data, (str(task.client), str(task.server_round)))
        return result, own

    def personalise(self, client: int, data: ClientData, local_state: Arrays) -> Arrays:
        """The client's own model, or, of a client that took part in no round, the server's; tuned."""
        return self.tuned(local_state or self.model, client, data)

    def _pulled(self, own: Arrays, server: Arrays, data: ClientData, names: tuple[str, str]) -> Arrays:
        module = self.networks.filled(own, place=1)
        loss = kept_near(server, self.loss(module, own), module, self.pull)
        train_locally(module, data, self.local, stream(self.world.random_seed, "own", *names), loss)
        return parameters_of(module)
