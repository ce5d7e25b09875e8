"""Networks of federated learning: heads over a frozen common expert's features, small CNNs, and gates.

A network is a plain torch module; what travels is its parameters as named arrays. No network here has buffers that
training changes (batch norm's averages do not average well over clients), so its parameters are all of its state.
"""

import math
import threading
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from collegium.core.settings import Settings
from collegium.federated.local_training import Batch
from collegium.federated.protocol import Arrays


class NetworkSettings(Settings):
    """A classifier: an expert, or the one model of FedAvg."""

    kind: Literal["linear", "mlp", "cnn"] = Field(
        default="mlp", description="linear, a hidden layer, or, of pictures, two convolutions"
    )
    hidden: int = Field(default=64, ge=1, description="units of the hidden layer; of a cnn, channels of its first")
    reads: Literal["inputs", "features"] = Field(
        default="inputs",
        description="inputs = what the recipe's `inputs` says; features = the common expert's embeddings, also where "
        "the inputs are pictures (FedAvg on what DDOME's gate reads)",
    )

    @model_validator(mode="after")
    def _a_cnn_reads_pictures(self) -> "NetworkSettings":
        if self.kind == "cnn" and self.reads == "features":
            raise ValueError("kind: cnn reads pictures, not features; take reads: inputs, or kind: mlp")
        return self


class Networks:
    """Networks of one kind, filled with parameters again and again.

    To build one, with random parameters that are overwritten at once, takes as long as several steps of its training;
    so the modules are kept. Threads have modules of their own.
    """

    def __init__(self, build: Callable[[], nn.Module]):
        self.build = build
        self._kept: dict[tuple[int, int], nn.Module] = {}

    def started(self, random_seed: int) -> Arrays:
        """Random parameters: the same ones for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random_seed)
            return parameters_of(self.build())

    def filled(self, arrays: Arrays, place: int = 0) -> nn.Module:
        """A network with copies of these parameters, to be used until the same place is filled again.

        Raises:
            ValueError: another set of names, or of shapes.
        """
        key = threading.get_ident(), place
        if key not in self._kept:
            with torch.random.fork_rng(devices=[]):
                self._kept[key] = self.build()
        module = self._kept[key]
        own = dict(module.named_parameters())
        if own.keys() != arrays.keys():
            raise ValueError(f"parameters {sorted(arrays)} are not those of the network, {sorted(own)}")
        with torch.no_grad():
            for name, parameter in own.items():
                if tuple(parameter.shape) != arrays[name].shape:
                    raise ValueError(f"{name} has shape {arrays[name].shape}, the network {tuple(parameter.shape)}")
                parameter.copy_(torch.tensor(arrays[name]))
        return module


def read_by(settings: NetworkSettings, batch: Batch) -> Float[Tensor, "examples ..."]:
    """What a network of these settings is given of a batch; pictures in one row each, but for a cnn."""
    read = batch.features if settings.reads == "features" else batch.inputs
    return read if settings.kind == "cnn" else read.flatten(1)


def build_network(settings: NetworkSettings, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network with parameters as torch draws them.

    Args:
        shape: of one input: (dim,), or (channels, height, width) for a cnn.
    """
    if settings.kind == "linear":
        return nn.Linear(math.prod(shape), classes)
    if settings.kind == "mlp":
        return nn.Sequential(
            nn.Linear(math.prod(shape), settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, classes)
        )
    return _cnn(shape, settings.hidden, classes)


def build_body(settings: NetworkSettings, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network of features for others to read: not linear, or there would be nothing to regularise or to align."""
    kind = "mlp" if settings.kind == "linear" else settings.kind
    return build_network(settings.model_copy(update={"kind": kind}), shape, outputs)


def build_gate(dim: int, num_experts: int, hidden: int) -> nn.Module:
    """Features → a score for each expert; linear where `hidden` is 0."""
    if hidden == 0:
        return nn.Linear(dim, num_experts)
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, num_experts))


def parameters_of(module: nn.Module) -> Arrays:
    """Name → a copy of each parameter."""
    return {name: value.detach().cpu().numpy().copy() for name, value in module.named_parameters()}


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
