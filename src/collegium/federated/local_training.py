"""A client's training: some passes of stochastic gradient descent over its own examples."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor, nn

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


def train_locally(
    module: nn.Module,
    data: ClientData,
    settings: LocalSettings,
    random: np.random.Generator,
    loss: Callable[[Batch], Tensor],
    adjust: Callable[[], None] | None = None,
) -> int:
    """Train the parameters of `module` in place; the number of steps that were taken.

    Args:
        random: draws the order of the examples.
        loss: of a batch; uses `module`.
        adjust: changes gradients between the backward pass and the step (Scaffold).
    """
    optimizer = torch.optim.SGD(
        module.parameters(), settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    module.train()
    steps = 0
    for _ in range(settings.epochs):
        order = random.permutation(len(data))
        for start in range(0, len(order), settings.batch_size):
            batch = as_batch(data.take(order[start : start + settings.batch_size]))
            optimizer.zero_grad()
            loss(batch).backward()
            if adjust is not None:
                adjust()
            optimizer.step()
            steps += 1
    module.eval()
    return steps


def as_batch(data: ClientData) -> Batch:
    """All examples of `data` as one batch."""
    features = torch.from_numpy(np.ascontiguousarray(data.features))
    inputs = features if data.inputs is data.features else torch.from_numpy(np.ascontiguousarray(data.inputs))
    return Batch(features, inputs, torch.from_numpy(np.ascontiguousarray(data.labels)))
