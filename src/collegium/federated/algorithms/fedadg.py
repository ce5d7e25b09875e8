"""FedADG: features of all clients are drawn towards one reference distribution, which a generator makes.

Zhang, Lei, Shi, Huang, Chen 2021, "Federated Learning with Domain Generalization", arXiv:2111.10487. Beside the
classifier there are a discriminator D, which should tell features f(x) from generated ones G(z, y) given the class y,
and the generator. Losses of a batch, with least squares:

    features and head    λ (1 − D(y, f(x)))² + (1 − λ) cross-entropy
    discriminator        −D(y, G(z, y))² − (1 − D(y, f(x)))²
    generator            (1 − D(y, G(z, y)))²

Each is minimised over its own parameters alone; here by one step for all of them together, in the paper one after the
other. All of them are averaged. In answering, features and head are used.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from collegium.core.random_streams import stream_seed
from collegium.federated.algorithms.one_model import OneModel, OneModelSettings, World
from collegium.federated.local_training import Batch
from collegium.federated.networks import build_body, read_by
from collegium.federated.protocol import Arrays
from collegium.privacy.federated_ledger import federated_release
from collegium.privacy.ledger import Release


class FedAdgSettings(OneModelSettings):
    """Settings of FedADG; a feature has as many numbers as the network's hidden layer."""

    name: Literal["fedadg"] = "fedadg"
    adversarial_weight: float = Field(default=0.5, ge=0, le=1, description="λ: 0 = cross-entropy alone")
    noise: int = Field(default=10, ge=1, description="numbers that the generator reads beside the class")


class _Adversarial(nn.Module):
    def __init__(self, body: nn.Module, dim: int, classes: int, noise: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(dim, classes)
        self.discriminator = nn.Sequential(nn.Linear(dim + classes, dim), nn.ReLU(), nn.Linear(dim, 1), nn.Sigmoid())
        self.generator = nn.Sequential(nn.Linear(noise + classes, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, inputs: Tensor) -> Float[Tensor, "examples classes"]:
        return self.head(self.body(inputs))


class FedAdg(OneModel):
    """A classifier, a discriminator and a generator, averaged; they start random."""

    draws = True

    def __init__(self, world: World, settings: FedAdgSettings):
        self.settings = settings
        super().__init__(world, settings.network, settings.local)

    def build(self) -> nn.Module:
        """A body that gives features, and what reads and imitates them."""
        body = build_body(self.network, self.world.shape_of(self.network), self.network.hidden)
        return _Adversarial(body, self.network.hidden, self.world.classes, self.settings.noise)

    def start(self) -> Arrays:
        return self.networks.started(stream_seed(self.world.random_seed, "network", "fedadg"))

    def releases(self) -> list[Release]:
        imitating = federated_release(
            "trained arrays: generator and discriminator",
            "features of the client's examples, by class",
            "what the features of each of the client's classes look like: the generator learns to imitate them",
        )
        return [*super().releases(), imitating]

    def loss(self, module: nn.Module, start: Arrays) -> Callable[[Batch], Tensor]:
        assert isinstance(module, _Adversarial)
        weight = self.settings.adversarial_weight

        def adversarial(batch: Batch) -> Tensor:
            classes = nn.functional.one_hot(batch.labels, self.world.classes).float()
            features = module.body(read_by(self.network, batch))
            noise = torch.rand(len(features), self.settings.noise)
            generated = module.generator(torch.cat([noise, classes], dim=1))
            fixed = {name: value.detach() for name, value in module.discriminator.named_parameters()}

            def judged(values: Tensor) -> Tensor:
                """By the discriminator as it is: the gradient is that of the values."""
                return functional_call(module.discriminator, fixed, (torch.cat([values, classes], dim=1),))

            def judging(values: Tensor) -> Tensor:
                """By the discriminator alone: the values are as they are."""
                return module.discriminator(torch.cat([values.detach(), classes], dim=1))

            task = nn.functional.cross_entropy(module.head(features), batch.labels)
            own = weight * (1 - judged(features)).pow(2).mean() + (1 - weight) * task
            discriminator = -(judging(generated).pow(2) + (1 - judging(features)).pow(2)).mean()
            return own + discriminator + (1 - judged(generated)).pow(2).mean()

        return adversarial
