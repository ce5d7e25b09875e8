"""What other programs' Mixtures of Experts can express, and whether a unified model fits one of them exactly.

All four targets route a token by softmax(W z), keep the k best, and add the experts' outputs with those weights (read
in transformers 5.24). Beside the names of tensors they differ in three points:

    weights     Mixtral divides the chosen by their sum; the others where `norm_topk_prob` says so
    shared      Qwen2-MoE adds a shared expert to every token; one of zeros adds exactly nothing
    windows     Qwen3-MoE has one attention window for all layers, Qwen3 may have two kinds of layers

None has a router bias, a context, or layers that reuse a decision. So a unified model is exported exactly or not at
all. A centre is a bias too, W (z − c) = W z − W c; a bias that is equal for all experts changes no softmax. A
temperature goes into the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import FlexOlmoConfig, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig

from collegium.moe.architectures import ARCHITECTURES

QWEN_NAMES = {matrix: f"mlp.experts.{{expert}}.{matrix}.weight" for matrix in ("gate_proj", "up_proj", "down_proj")}
SHARED_EXPERT = {matrix: f"mlp.shared_expert.{matrix}.weight" for matrix in ("gate_proj", "up_proj", "down_proj")}
SHARED_GATE = "mlp.shared_expert_gate.weight"
WIDEST_SHARED = 256  # divisible for tensor parallelism and a whole block of every quantisation, yet cheap


@dataclass(frozen=True)
class Target:
    """An architecture that others serve.

    Attributes:
        seeds: families of seeds that it continues.
        experts: our name of a matrix → its name below a layer.
        router: name of the router's rows below a layer.
        num_experts: field of the configuration that counts the experts.
        chooses_norm: `norm_topk_prob` says whether the chosen weights are divided by their sum; otherwise they are.
        own_inner: the experts' inner size has a field of its own, and a shared expert, where there is one, another.
        shared_expert: every token also runs through a shared expert.
        mixes_windows: layers may differ in their attention window.
        refused: fields of the seed's configuration → the only value that the target can express.
    """

    seeds: tuple[str, ...]
    config_class: Any
    model_class: str
    experts: Mapping[str, str] = field(default_factory=lambda: QWEN_NAMES)
    router: str = "mlp.gate.weight"
    num_experts: str = "num_experts"
    chooses_norm: bool = True
    own_inner: bool = False
    shared_expert: bool = False
    mixes_windows: bool = True
    refused: Mapping[str, object] = field(default_factory=dict)


TARGETS = {
    "mixtral": Target(
        seeds=("llama", "mistral"),
        config_class=MixtralConfig,
        model_class="MixtralForCausalLM",
        experts={
            matrix: f"block_sparse_moe.experts.{{expert}}.{name}.weight"
            for matrix, name in {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}.items()
        },
        router="block_sparse_moe.gate.weight",
        num_experts="num_local_experts",
        chooses_norm=False,
        refused={"attention_bias": False, "mlp_bias": False},
    ),
    "qwen2-moe": Target(
        seeds=("qwen2",),
        config_class=Qwen2MoeConfig,
        model_class="Qwen2MoeForCausalLM",
        own_inner=True,
        shared_expert=True,
    ),
    "qwen3-moe": Target(
        seeds=("qwen3",),
        config_class=Qwen3MoeConfig,
        model_class="Qwen3MoeForCausalLM",
        own_inner=True,
        mixes_windows=False,
    ),
    "flexolmo": Target(seeds=("olmo2",), config_class=FlexOlmoConfig, model_class="FlexOlmoForCausalLM"),
}


@dataclass(frozen=True)
class RouterValues:
    """A router's tensors as they lie in the file."""

    weight: Float[Tensor, "experts dim"]
    bias: Float[Tensor, " experts"]
    centre: Float[Tensor, " dim"]
    context_weight: float
    temperature: float

    @property
    def rows(self) -> Float[Tensor, "experts dim"]:
        """W / temperature, divided in float64: at temperature 1 the very same numbers."""
        return (self.weight.double() / self.temperature).float()

    @property
    def bias_spread(self) -> float:
        """Largest difference between two experts' biases, the centre's part included; in logits."""
        bias = (self.bias.double() - self.weight.double() @ self.centre.double()) / self.temperature
        return float(bias.max() - bias.min())


def target_for(seed_model_type: str) -> str | None:
    """The target that continues a family of seeds."""
    return next((name for name, target in TARGETS.items() if seed_model_type in target.seeds), None)


def obstacles(name: str, config: Any, routers: Sequence[RouterValues]) -> list[str]:
    """Everything in a unified model that the target cannot express; empty = it fits exactly."""
    target = TARGETS[name]
    found = []
    seed = config.seed_model_type
    if seed not in target.seeds:
        kind, fitting = ARCHITECTURES[seed].kind, target_for(seed)
        instead = f"; use --to {fitting}" if fitting else "; no target continues it"
        found.append(f"the seed is a {seed} ({kind}), the target continues {' or '.join(target.seeds)}{instead}")
    for field_name, only in target.refused.items():
        if getattr(config, field_name, only) != only:
            found.append(f"{field_name} = {getattr(config, field_name)}: the target has no such biases")
    if len(set(getattr(config, "layer_types", None) or [])) > 1 and not target.mixes_windows:
        found.append("layers with and without a sliding window: the target has one kind for all layers")
    return found + routing_obstacles(config, routers, target)


def routing_obstacles(config: Any, routers: Sequence[RouterValues], target: Target) -> list[str]:
    """What the target's router cannot do."""
    found = []
    if config.decide != "every-layer":
        found.append(f"router.decide = {config.decide}: the target has a router in every layer and reuses no decision")
    if config.warmup_tokens > 0:
        found.append(f"router.warmup_tokens = {config.warmup_tokens}: the target cannot send early tokens to the seed")
    weights = [router.context_weight for router in routers]
    if config.context != "token" and any(not weight <= 0.0 for weight in weights):
        found.append(
            f"router.context = {config.context} with context_weight up to {max(weights):.3g}: the target's router sees "
            "the token alone; unify again with router.context_weight=0"
        )
    spreads = [router.bias_spread for router in routers]
    if any(spread != 0.0 for spread in spreads):
        found.append(
            f"a router bias (up to {max(spreads):.3g} between two experts; a centre is one too): the target's router "
            "has none; router.init raw and normalised make routers without bias"
        )
    if config.weighting == "softmax" and not target.chooses_norm:
        found.append("router.weighting = softmax: the target divides the chosen weights by their sum")
    return found


def finite(router: RouterValues) -> bool:
    """Whether the rows are numbers and the temperature can divide."""
    return bool(torch.isfinite(router.rows).all()) and router.temperature > 0.0
