"""FedProx: FedAvg with a penalty on how far a client goes from the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020, "Federated Optimization in Heterogeneous Networks",
arXiv:1812.06127, algorithm 2: h(w) = F(w) + μ/2 ‖w − w_t‖².
"""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from collegium.federated.algorithms.one_model import OneModel, PersonalSettings, World
from collegium.federated.local_training import Batch
from collegium.federated.networks import read_by
from collegium.federated.protocol import Arrays


class FedProxSettings(PersonalSettings):
    """Settings of FedProx."""

    name: Literal["fedprox"] = "fedprox"
    proximal: float = Field(default=0.1, ge=0, description="μ: weight of the penalty; 0 = FedAvg")


class FedProx(OneModel):
    """One model, averaged; clients stay near it."""

    def __init__(self, world: World, settings: FedProxSettings):
        super().__init__(world, settings.network, settings.local, settings.personal_epochs)
        self.proximal = settings.proximal

    def loss(self, module: nn.Module, start: Arrays) -> Callable[[Batch], Tensor]:
        def task(batch: Batch) -> Tensor:
            return nn.functional.cross_entropy(module(read_by(self.network, batch)), batch.labels)

        return kept_near(start, task, module, self.proximal)


def kept_near(
    near: Arrays, task: Callable[[Batch], Tensor], module: nn.Module, weight: float
) -> Callable[[Batch], Tensor]:
    """A loss with the penalty weight/2 ‖w − near‖² on the parameters w of `module`."""
    fixed = {name: torch.from_numpy(array) for name, array in near.items()}

    def penalised(batch: Batch) -> Tensor:
        distance = sum((value - fixed[name]).pow(2).sum() for name, value in module.named_parameters())
        return task(batch) + weight / 2 * distance

    return penalised
