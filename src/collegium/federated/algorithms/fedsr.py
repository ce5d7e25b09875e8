"""FedSR: a representation that is simple and says little about the client beyond the label.

Nguyen, Torr, Lim 2022, "FedSR: A Simple and Effective Domain Generalization Method for Federated Learning", NeurIPS.
The network gives the mean and deviation of a Gaussian z | x; the classifier reads a sample of z. Beside the task loss:

    α_L2R · E‖z‖²                        the representation is short
    α_CMI · KL( p(z | x) ‖ r(z | y) )    given the label, it tells no more of x; r: a learnt Gaussian a class

In answering, the mean is read. Averaging is FedAvg's, over all parameters, those of r among them.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from collegium.core.random_streams import stream_seed
from collegium.federated.algorithms.one_model import OneModel, OneModelSettings, World
from collegium.federated.local_training import Batch
from collegium.federated.networks import build_body, read_by
from collegium.federated.protocol import Arrays
from collegium.privacy.federated_ledger import federated_release
from collegium.privacy.ledger import Release

SMALLEST = 1e-3  # of a standard deviation


class FedSrSettings(OneModelSettings):
    """Settings of FedSR; the representation has as many numbers as the network's hidden layer."""

    name: Literal["fedsr"] = "fedsr"
    length_weight: float = Field(default=0.01, ge=0, description="α_L2R")
    information_weight: float = Field(default=0.0005, ge=0, description="α_CMI")


class _Probabilistic(nn.Module):
    def __init__(self, body: nn.Module, dim: int, classes: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(dim, classes)
        self.class_mean = nn.Parameter(torch.zeros(classes, dim))
        self.class_scale = nn.Parameter(torch.full((classes, dim), 0.5413))  # a deviation of 1

    def encode(self, inputs: Tensor) -> tuple[Float[Tensor, "examples dim"], Float[Tensor, "examples dim"]]:
        mean, scale = self.body(inputs).chunk(2, dim=1)
        return mean, nn.functional.softplus(scale) + SMALLEST

    def forward(self, inputs: Tensor) -> Float[Tensor, "examples classes"]:
        return self.head(self.encode(inputs)[0])


class FedSr(OneModel):
    """One probabilistic model, averaged; it starts random."""

    draws = True

    def __init__(self, world: World, settings: FedSrSettings):
        self.length_weight, self.information_weight = settings.length_weight, settings.information_weight
        super().__init__(world, settings.network, settings.local)

    def build(self) -> nn.Module:
        """A body that gives 2 · hidden numbers, and the head over a sample of them."""
        dim = self.network.hidden
        return _Probabilistic(
            build_body(self.network, self.world.shape_of(self.network), 2 * dim), dim, self.world.classes
        )

    def start(self) -> Arrays:
        return self.networks.started(stream_seed(self.world.random_seed, "network", "fedsr"))

    def releases(self) -> list[Release]:
        of_classes = federated_release(
            "trained arrays: mean and deviation of each class's representation",
            "the representations of the client's examples, by class",
            "which classes the client has: those of others do not move; and where their mean is",
        )
        return [*super().releases(), of_classes]

    def loss(self, module: nn.Module, start: Arrays) -> Callable[[Batch], Tensor]:
        assert isinstance(module, _Probabilistic)

        def regularised(batch: Batch) -> Tensor:
            mean, scale = module.encode(read_by(self.network, batch))
            sample = mean + scale * torch.randn_like(scale)
            task = nn.functional.cross_entropy(module.head(sample), batch.labels)
            prior = nn.functional.softplus(module.class_scale[batch.labels]) + SMALLEST
            shift = mean - module.class_mean[batch.labels]
            divergence = (prior / scale).log() + (scale**2 + shift**2) / (2 * prior**2) - 0.5
            length = sample.pow(2).sum(dim=1).mean()
            return task + self.length_weight * length + self.information_weight * divergence.sum(dim=1).mean()

        return regularised
