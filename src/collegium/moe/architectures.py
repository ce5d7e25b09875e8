"""Where each model family keeps its feed-forward network: the one table.

Adding a family is one row here, one class pair in `modeling.py`, and one parity test. Matrices have one name in all
families, so that contributions and exports need not know the family:

    up_proj    hidden → inner
    down_proj  inner → hidden
"""

from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True)
class Architecture:
    """One family. Paths are relative to a layer, unless said otherwise.

    Attributes:
        layers: path of the list of layers, from the model.
        ffn: submodule whose first argument is the FFN's input; the MoE takes its place.
        identity: submodule that becomes the identity, because the MoE does its work.
        matrices: our name of each matrix → its path.
        norm: the normalisation whose output is the FFN's input.
        activation: field of the configuration that names the activation.
        refused: fields of the configuration → the only value that the MoE supports.
    """

    layers: str
    ffn: str
    identity: str
    matrices: dict[str, str]
    norm: str
    activation: str
    refused: dict[str, object] = field(default_factory=dict)


ARCHITECTURES = {
    "bert": Architecture(
        layers="encoder.layer",
        ffn="intermediate",
        identity="output.dense",
        matrices={"up_proj": "intermediate.dense", "down_proj": "output.dense"},
        norm="attention.output.LayerNorm",
        activation="hidden_act",
        refused={"chunk_size_feed_forward": 0, "is_decoder": False, "add_cross_attention": False},
    ),
}


def architecture_of(model_type: str) -> Architecture:
    """The row of a family, by the `model_type` of its configuration.

    Raises:
        ValueError: the family is not supported; the message lists those that are.
    """
    if model_type not in ARCHITECTURES:
        raise ValueError(f"model type {model_type!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}")
    return ARCHITECTURES[model_type]


def layers_of(model: nn.Module, architecture: Architecture) -> nn.ModuleList:
    """The list of layers of a model, counted from 0."""
    return model.get_submodule(architecture.layers)  # pyright: ignore[reportReturnType]


def ffn_parameter_names(architecture: Architecture, model: nn.Module, layer: int) -> dict[str, str]:
    """For one layer: neutral name (`layers.1.up_proj.weight`) → name in the model's state dict."""
    names = {}
    for matrix, path in architecture.matrices.items():
        module = layers_of(model, architecture)[layer].get_submodule(path)
        for parameter, _ in module.named_parameters():
            names[f"layers.{layer}.{matrix}.{parameter}"] = f"{architecture.layers}.{layer}.{path}.{parameter}"
    return names
