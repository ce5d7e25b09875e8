"""Where each model family keeps its feed-forward network: the one table.

Adding a family is one row here and its class lines in `modeling.py`; the tests run over the whole table. Matrices have
one name in all families, so that contributions and exports need not know the family:

    gate_proj  hidden → inner, through the activation; gated families alone: down(act(gate z) ∘ up z)
    up_proj    hidden → inner
    down_proj  inner → hidden
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

CONTEXTS = {
    "encoder": ("token", "sequence", "seed"),
    "vision": ("token", "sequence", "seed"),
    "decoder": ("token", "causal", "seed"),
}


@dataclass(frozen=True)
class Architecture:
    """One family. Paths are relative to a layer, unless said otherwise.

    Attributes:
        layers: path of the list of layers, from the base model (without its head).
        ffn: submodule whose first argument is the FFN's input; the MoE takes its place.
        matrices: our name of each matrix → its path.
        activation: field of the configuration that names the activation.
        norm: the normalisation whose output is the FFN's input; "" where the FFN reads the residual stream.
        identity: submodule that becomes the identity, because the MoE does its work; "" = none.
        residual_norms: where `norm` is "", the normalisations whose outputs are all that a layer adds to the stream.
        embedding: where `norm` is "", the table that the stream starts from, from the base model.
        norm_offset: added to the norm's weight (Gemma scales by 1 + weight).
        kind: `encoder` (texts, the whole sequence is there), `decoder` (causal, with a cache), `vision` (patches).
        padded_positions: positions start after the padding token's index (RoBERTa).
        refused: fields of the configuration → the only value that the MoE supports.
    """

    layers: str
    ffn: str
    matrices: Mapping[str, str]
    activation: str
    norm: str
    identity: str = ""
    residual_norms: tuple[str, ...] = ()
    embedding: str = ""
    norm_offset: float = 0.0
    kind: Literal["encoder", "decoder", "vision"] = "encoder"
    padded_positions: bool = False
    refused: Mapping[str, object] = field(default_factory=dict)

    @property
    def gated(self) -> bool:
        return "gate_proj" in self.matrices


GATED = {"gate_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj", "down_proj": "mlp.down_proj"}
PLAIN = {"up_proj": "mlp.fc1", "down_proj": "mlp.fc2"}


def _bert_like(padded_positions: bool) -> Architecture:
    return Architecture(
        layers="encoder.layer",
        ffn="intermediate",
        identity="output.dense",
        matrices={"up_proj": "intermediate.dense", "down_proj": "output.dense"},
        norm="attention.output.LayerNorm",
        activation="hidden_act",
        padded_positions=padded_positions,
        refused={"chunk_size_feed_forward": 0, "is_decoder": False, "add_cross_attention": False},
    )


def _llama_like() -> Architecture:
    return Architecture(
        layers="layers",
        ffn="mlp",
        matrices=GATED,
        norm="post_attention_layernorm",
        activation="hidden_act",
        kind="decoder",
    )


def _gemma_like(norm: str, activation: str) -> Architecture:
    return Architecture(
        layers="layers",
        ffn="mlp",
        matrices=GATED,
        norm=norm,
        norm_offset=1.0,
        activation=activation,
        kind="decoder",
        refused={"use_bidirectional_attention": False},
    )


def _plain(layers: str, norm: str, kind: Literal["encoder", "vision"], **refused: object) -> Architecture:
    return Architecture(
        layers=layers, ffn="mlp", matrices=PLAIN, norm=norm, activation="hidden_act", kind=kind, refused=refused
    )


ARCHITECTURES = {
    "bert": _bert_like(padded_positions=False),
    "roberta": _bert_like(padded_positions=True),
    "xlm-roberta": _bert_like(padded_positions=True),
    "clip_text_model": _plain("encoder.layers", "layer_norm2", "encoder"),
    "clip_vision_model": _plain("encoder.layers", "layer_norm2", "vision"),
    "vit": _plain("layers", "layernorm_after", "vision"),
    "dinov2": _plain("encoder.layer", "norm2", "vision", use_swiglu_ffn=False),
    "llama": _llama_like(),
    "mistral": _llama_like(),
    "qwen2": _llama_like(),
    "qwen3": _llama_like(),
    "gemma": _gemma_like("post_attention_layernorm", "hidden_act"),
    "gemma2": _gemma_like("pre_feedforward_layernorm", "hidden_activation"),
    "gemma3_text": _gemma_like("pre_feedforward_layernorm", "hidden_activation"),
    "olmo2": Architecture(
        layers="layers",
        ffn="mlp",
        matrices=GATED,
        norm="",
        residual_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        embedding="embed_tokens",
        activation="hidden_act",
        kind="decoder",
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


def first_position(config: PreTrainedConfig) -> int:
    """Position of the first real token of a text, for a seed's configuration or a unified one."""
    architecture = architecture_of(getattr(config, "seed_model_type", config.model_type))
    return config.pad_token_id + 1 if architecture.padded_positions else 0


def layers_path(model: nn.Module, architecture: Architecture) -> str:
    """Path of the list of layers from the model itself: below a causal-LM head it is deeper than in the base model."""
    has_head = isinstance(model, PreTrainedModel) and model.base_model is not model
    return f"{model.base_model_prefix}.{architecture.layers}" if has_head else architecture.layers


def layers_of(model: nn.Module, architecture: Architecture) -> nn.ModuleList:
    """The list of layers of a model, counted from 0."""
    return model.get_submodule(layers_path(model, architecture))  # pyright: ignore[reportReturnType]


def ffn_parameter_names(architecture: Architecture, model: nn.Module, layer: int) -> dict[str, str]:
    """For one layer: neutral name (`layers.1.up_proj.weight`) → name in the model's state dict."""
    path = layers_path(model, architecture)
    names = {}
    for matrix, inner_path in architecture.matrices.items():
        module = model.get_submodule(f"{path}.{layer}.{inner_path}")
        for parameter, _ in module.named_parameters():
            names[f"layers.{layer}.{matrix}.{parameter}"] = f"{path}.{layer}.{inner_path}.{parameter}"
    return names
