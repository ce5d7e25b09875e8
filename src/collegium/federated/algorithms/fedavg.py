"""FedAvg: clients train the same model on their own examples, and the server averages the models.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas 2017, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", arXiv:1602.05629, algorithm 1. There the average is weighted by the number of examples; here it is
plain, because that number would tell about the client, and no result of ours depends on it.
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from collegium.federated.algorithms.one_model import OneModel, PersonalSettings, World
from collegium.federated.local_training import Batch
from collegium.federated.networks import read_by
from collegium.federated.protocol import Arrays


class FedAvgSettings(PersonalSettings):
    """Settings of FedAvg."""

    name: Literal["fedavg"] = "fedavg"


class FedAvg(OneModel):
    """One model, averaged."""

    def __init__(self, world: World, settings: PersonalSettings):
        super().__init__(world, settings.network, settings.local, settings.personal_epochs)

    def loss(self, module: nn.Module, start: Arrays) -> Callable[[Batch], Tensor]:
        return lambda batch: nn.functional.cross_entropy(module(read_by(self.network, batch)), batch.labels)
