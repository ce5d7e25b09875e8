"""A client's training: some passes of stochastic gradient descent over its own examples."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor, nn
from torch.optim.sgd import sgd

from collegium.core.settings import Settings
from collegium.federated.protocol import ClientData


class LocalSettings(Settings):
    """Local training; the same for every client."""

    epochs: int = Field(default=1, ge=1, description="passes over the client's examples in a round")
    batch_size: int = Field(default=32, ge=1, description="examples in a step")
    learning_rate: float = Field(default=0.05, gt=0, description="of SGD")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="of SGD; starts at 0 in every round")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty on all parameters")


class Batch(NamedTuple):
    """Some examples as tensors."""

    features: Float[Tensor, "examples dim"]
    inputs: Float[Tensor, "examples ..."]
    labels: Int64[Tensor, " examples"]

    def take(self, rows: Int64[Tensor, " some"]) -> "Batch":
        """Some of the examples."""
        features = self.features[rows]
        return Batch(features, features if self.inputs is self.features else self.inputs[rows], self.labels[rows])


def train_locally(
    module: nn.Module,
    data: ClientData,
    settings: LocalSettings,
    random: np.random.Generator,
    loss: Callable[[Batch], Tensor],
    adjust: Callable[[list[Tensor]], None] | None = None,
    only: Sequence[str] | None = None,
) -> int:
    """Train the parameters of `module` in place; the number of steps that were taken.

    Steps are small and many: torch's SGD as a function takes two thirds of the time of its optimizer object.

    Args:
        random: draws the order of the examples.
        loss: of a batch; uses `module`.
        adjust: changes the gradients, in the order of the parameters, before the step (Scaffold).
        only: names of the parameters that are trained; None = all.
    """
    parameters: list[Tensor] = [value for name, value in module.named_parameters() if only is None or name in only]
    momenta: list[Tensor | None] = [None for _ in parameters]
    module.train()
    steps = 0
    examples = as_batch(data)
    for _ in range(settings.epochs):
        order = torch.from_numpy(random.permutation(len(data)))
        for start in range(0, len(order), settings.batch_size):
            value = loss(examples.take(order[start : start + settings.batch_size]))
            gradients = list(torch.autograd.grad(value, parameters))
            if adjust is not None:
                adjust(gradients)
            with torch.no_grad():
                sgd(
                    parameters,
                    gradients,
                    momenta,
                    weight_decay=settings.weight_decay,
                    momentum=settings.momentum,
                    lr=settings.learning_rate,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                )
            steps += 1
    module.eval()
    return steps


def as_batch(data: ClientData) -> Batch:
    """All examples of `data` as one batch."""
    features = torch.from_numpy(np.ascontiguousarray(data.features))
    inputs = features if data.inputs is data.features else torch.from_numpy(np.ascontiguousarray(data.inputs))
    return Batch(features, inputs, torch.from_numpy(np.ascontiguousarray(data.labels)))
