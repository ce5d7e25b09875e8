"""Puts experts into models: one expert into the seed (a dense model), or all of them into a MoE."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from collegium.core.recipe import RouterSettings, TrainingSettings
from collegium.models.encoder import Encoder
from collegium.models.seed_model import SeedModel
from collegium.moe.architectures import ffn_parameter_names, layers_path
from collegium.moe.modeling import UNIFIED_CLASSES, unified_config
from collegium.unify.adapter import add_low_rank

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def unified_model(
    seed: SeedModel,
    experts: Mapping[str, Mapping[str, Tensor]],
    layers: Sequence[int],
    router: RouterSettings,
) -> Any:
    """A MoE model with the experts' FFNs, every other tensor of the seed, and routers still at zero.

    Args:
        experts: owner → full FFN tensors under neutral names; the order is the order of the model's experts.
        layers: the layers that have experts.
    """
    config = moe_config(seed.model.config, list(experts), router)
    model = UNIFIED_CLASSES[seed.model.config.model_type][1](config)
    members = list(experts.values()) + ([ffn_tensors(seed, layers)] if config.keeps_seed_ffn else [])
    own_state = model.state_dict()
    moved = {name for layer in layers for name in ffn_parameter_names(seed.architecture, seed.model, layer).values()}
    state = {name: tensor for name, tensor in seed.model.state_dict().items() if name not in moved}
    for index, tensors in enumerate(members):
        for neutral, tensor in tensors.items():
            _, layer, matrix, parameter = neutral.split(".")
            prefix = f"{layers_path(model, seed.architecture)}.{layer}.{seed.architecture.ffn}.experts"
            state[f"{prefix}.{index}.{matrix}.{parameter}"] = tensor
    routers = {name: tensor for name, tensor in own_state.items() if ".router." in name}
    model.load_state_dict({**state, **routers}, strict=True)
    return model.eval().requires_grad_(False)


def moe_config(seed: Any, names: Sequence[str], router: RouterSettings) -> Any:
    """The configuration of a unified model.

    Args:
        seed: the seed's configuration.
        names: of the experts, in their order.
    """
    return unified_config(
        seed,
        expert_names=list(names),
        decide=router.decide,
        decide_layer=router.decide_layer,
        context=router.context,
        experts_per_token=router.experts_per_token,
        weighting=router.weighting,
        learn_context_weight=router.learn_context_weight,
        warmup_tokens=router.warmup,
        fallback=router.fallback,
    )


def dense_model(seed: SeedModel, tensors: Mapping[str, Tensor]) -> Encoder:
    """The seed with one set of FFNs: a single expert, or a soup."""
    model = copy.deepcopy(seed.model)
    state = model.state_dict()
    for layer in sorted({int(neutral.split(".")[1]) for neutral in tensors}):
        for neutral, own in ffn_parameter_names(seed.architecture, model, layer).items():
            state[own].copy_(tensors[neutral])
    return Encoder(model=model, tokenizer=seed.tokenizer, pooling=seed.pooling, max_length=seed.max_length)


def full_expert(seed: SeedModel, tensors: Mapping[str, Tensor], training: TrainingSettings) -> dict[str, Tensor]:
    """Full FFN tensors of an expert; LoRA factors are merged, W + (lora_alpha / rank) · B A."""
    layers = sorted({int(name.split(".")[1]) for name in tensors})
    full = ffn_tensors(seed, layers)
    if training.parameters == "full":
        return {name: tensors[name] for name in full}
    scale = training.lora_alpha / training.rank
    for name in full:
        matrix = name.removesuffix(".weight")
        if name.endswith(".weight"):
            full[name] = add_low_rank(full[name], tensors[f"{matrix}.lora_A"], tensors[f"{matrix}.lora_B"], scale)
    return full


def ffn_tensors(seed: SeedModel, layers: Sequence[int]) -> dict[str, Tensor]:
    """The seed's own FFN tensors under neutral names."""
    state = seed.model.state_dict()
    return {
        neutral: state[own].clone()
        for layer in layers
        for neutral, own in ffn_parameter_names(seed.architecture, seed.model, layer).items()
    }
