"""FedRep: as FedPer, but a client first fits its last layer to the shared body, and then trains the body alone.

Collins, Hassani, Mokhtari, Shakkottai 2021, "Exploiting Shared Representations for Personalized Federated Learning",
arXiv:2102.07089, algorithm 1.
"""

from typing import Literal

from pydantic import Field

from collegium.federated.algorithms.fedper import FedPer
from collegium.federated.algorithms.one_model import PersonalSettings, World
from collegium.federated.protocol import Arrays, ClientData, Message


class FedRepSettings(PersonalSettings):
    """Settings of FedRep; `local` is the training of the body."""

    name: Literal["fedrep"] = "fedrep"
    head_epochs: int = Field(default=1, ge=1, description="passes over a client's examples that train its last layer")


class FedRep(FedPer):
    """A shared body; the last layer and the body are trained in turn."""

    def __init__(self, world: World, settings: FedRepSettings):
        super().__init__(world, settings)
        self.head_epochs = settings.head_epochs

    def train(self, arrays: Arrays, data: ClientData, task: Message) -> Arrays:
        names = str(task.client), str(task.server_round)
        local = self.local.model_copy(update={"epochs": self.head_epochs})
        fitted = self.trained(arrays, data, local, ("head", *names), only=self.head)
        if not self.body:  # of a linear network
            return fitted
        return self.trained(fitted, data, self.local, ("local", *names), only=self.body)
