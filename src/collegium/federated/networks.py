"""Networks of federated learning: heads over a frozen common expert's features, small CNNs, and gates.

A network is a plain torch module; what travels is its parameters as named arrays. No network here has buffers that
training changes (batch norm's averages do not average well over clients), so its parameters are all of its state.
"""

import math
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from collegium.core.settings import Settings
from collegium.federated.protocol import Arrays


class NetworkSettings(Settings):
    """A classifier: an expert, or the one model of FedAvg."""

    kind: Literal["linear", "mlp", "cnn"] = Field(
        default="mlp", description="of the features: linear or a hidden layer; of pictures: two convolutions"
    )
    hidden: int = Field(default=64, ge=1, description="units of the hidden layer; of a cnn, channels of its first")


def build_network(settings: NetworkSettings, shape: tuple[int, ...], classes: int, random_seed: int) -> nn.Module:
    """A network with random parameters: the same ones for the same seed.

    Args:
        shape: of one input: (dim,), or (channels, height, width) for a cnn.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed)
        if settings.kind == "linear":
            return nn.Linear(math.prod(shape), classes)
        if settings.kind == "mlp":
            return nn.Sequential(nn.Linear(shape[0], settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, classes))
        return _cnn(shape, settings.hidden, classes)


def build_body(settings: NetworkSettings, shape: tuple[int, ...], outputs: int, random_seed: int) -> nn.Module:
    """A network of features for others to read: not linear, or there would be nothing to regularise or to align."""
    kind = "mlp" if settings.kind == "linear" else settings.kind
    return build_network(settings.model_copy(update={"kind": kind}), shape, outputs, random_seed)


def build_gate(dim: int, num_experts: int, hidden: int, random_seed: int) -> nn.Module:
    """Features → a score for each expert; linear where `hidden` is 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed)
        if hidden == 0:
            return nn.Linear(dim, num_experts)
        return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, num_experts))


def parameters_of(module: nn.Module) -> Arrays:
    """Name → a copy of each parameter."""
    return {name: value.detach().cpu().numpy().copy() for name, value in module.named_parameters()}


def load_parameters(module: nn.Module, arrays: Arrays) -> nn.Module:
    """Put arrays into a module, in place; the module itself.

    Raises:
        ValueError: another set of names, or of shapes.
    """
    own = dict(module.named_parameters())
    if own.keys() != arrays.keys():
        raise ValueError(f"parameters {sorted(arrays)} are not those of the network, {sorted(own)}")
    with torch.no_grad():
        for name, parameter in own.items():
            if tuple(parameter.shape) != arrays[name].shape:
                raise ValueError(f"{name} has shape {arrays[name].shape}, the network {tuple(parameter.shape)}")
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))
    return module


class _Cnn(nn.Module):
    def __init__(self, channels: int, width: int, pooled: int, classes: int):
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.second = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width * pooled, classes)

    def forward(self, pictures: Float[Tensor, "items channels height width"]) -> Float[Tensor, "items classes"]:
        hidden = nn.functional.max_pool2d(nn.functional.relu(self.first(pictures)), 2)
        hidden = nn.functional.max_pool2d(nn.functional.relu(self.second(hidden)), 2)
        return self.head(hidden.flatten(1))


def _cnn(shape: tuple[int, ...], width: int, classes: int) -> nn.Module:
    channels, height, breadth = shape
    return _Cnn(channels, width, (height // 4) * (breadth // 4), classes)
