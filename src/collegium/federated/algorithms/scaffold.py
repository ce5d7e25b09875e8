"""Scaffold: control variates correct every local step by how the client's gradient differs from the average one.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
arXiv:1910.06378, algorithm 1 with option II and the global step size 1:

    y ← y − η (∇F_i(y) − c_i + c)                       a local step
    c_i⁺ = c_i − c + (x − y) / (steps · η)               the client's new control variate
    x ← mean of y,   c ← c + |S| / N · mean of (c_i⁺ − c_i)

c_i is the client's own and stays with it; the change of c_i leaves it. Momentum is not used: the correction is derived
for plain steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float32
from pydantic import model_validator
from torch import Tensor, nn

from collegium.core.random_streams import stream
from collegium.federated.algorithms.one_model import OneModelSettings, World, log_probabilities
from collegium.federated.local_training import Batch, train_locally
from collegium.federated.networks import Networks, parameters_of, read_by
from collegium.federated.protocol import (
    Algorithm,
    Arrays,
    ClientData,
    Message,
    below,
    prefixed,
    sorted_results,
    weighted_mean,
    weights_of,
)
from collegium.privacy.federated_ledger import federated_release, trained_arrays
from collegium.privacy.ledger import Release


class ScaffoldSettings(OneModelSettings):
    """Settings of Scaffold."""

    name: Literal["scaffold"] = "scaffold"

    @model_validator(mode="after")
    def _plain_steps(self) -> "ScaffoldSettings":
        if self.local.momentum or self.local.weight_decay:
            raise ValueError("Scaffold's correction is for plain steps; set local.momentum and local.weight_decay to 0")
        return self


class Scaffold(Algorithm):
    """One model, averaged; local steps are corrected by control variates."""

    def __init__(self, world: World, settings: ScaffoldSettings):
        self.world, self.settings = world, settings
        self.networks = Networks(lambda: world.build(settings.network))
        self.model = world.start(self.networks)
        self.control = {name: np.zeros_like(array) for name, array in self.model.items()}

    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        arrays = {**prefixed(self.model, "model"), **prefixed(self.control, "control")}
        return [Message(client, server_round, dict(arrays)) for client in clients]

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        start, control = below(task.arrays, "model"), below(task.arrays, "control")
        own = local_state or {name: np.zeros_like(array) for name, array in control.items()}
        module = self.networks.filled(start)
        shifts = [torch.from_numpy(control[name] - own[name]) for name, _ in module.named_parameters()]

        def adjust(gradients: list[Tensor]) -> None:
            for gradient, shift in zip(gradients, shifts, strict=True):
                gradient.add_(shift)

        local = self.settings.local
        random = stream(self.world.random_seed, "local", str(task.client), str(task.server_round))

        def loss(batch: Batch) -> Tensor:
            return nn.functional.cross_entropy(module(read_by(self.settings.network, batch)), batch.labels)

        steps = train_locally(module, data, local, random, loss, adjust)
        trained = parameters_of(module)
        updated = {
            name: own[name] - control[name] + (start[name] - trained[name]) / np.float32(steps * local.learning_rate)
            for name in control
        }
        changes = {name: updated[name] - own[name] for name in updated}
        arrays = {**prefixed(trained, "model"), **prefixed(changes, "control")}
        return Message(task.client, task.server_round, arrays), updated

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        ordered = sorted_results(results)
        if not ordered:
            return
        weights = weights_of(ordered, server_round)
        self.model = weighted_mean([below(result.arrays, "model") for result in ordered], weights)
        change = weighted_mean([below(result.arrays, "control") for result in ordered], weights)
        share = np.float32(sum(weights) / self.world.num_clients)
        self.control = {name: array + share * change[name] for name, array in self.control.items()}

    def predict(self, data: ClientData, local_state: Arrays | None = None) -> Float32[np.ndarray, "examples classes"]:
        return log_probabilities(self.networks.filled(self.model), self.settings.network, data)

    def releases(self) -> list[Release]:
        return [
            trained_arrays("the model"),
            federated_release(
                "change of the control variate",
                "the client's examples: its mean gradient in a round",
                "the mean gradient of the client's examples, from which single ones may be found where they are few. "
                "Beside the model it tells the number of steps exactly, so that of the examples to within a batch",
            ),
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"arrays": {**prefixed(self.model, "model"), **prefixed(self.control, "control")}, "values": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model, self.control = below(state["arrays"], "model"), below(state["arrays"], "control")
