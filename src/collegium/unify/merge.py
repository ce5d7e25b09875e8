"""Puts all experts into one model, a MoE."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from collegium.core.router_settings import RouterSettings
from collegium.models.expert_tensors import ffn_tensors, rank_of
from collegium.models.seed_model import SeedModel
from collegium.moe.architectures import ffn_parameter_names, layers_path
from collegium.moe.modeling import UNIFIED_MODELS, unified_config

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def unified_model(
    seed: SeedModel,
    experts: Mapping[str, Mapping[str, Tensor]],
    layers: Sequence[int],
    router: RouterSettings,
) -> Any:
    """A MoE model with the experts' FFNs, every other tensor of the seed, and routers still at zero.

    Args:
        experts: owner → FFN tensors under neutral names (`layers.1.up_proj.weight`), or low-rank factors
            (`layers.1.up_proj.lora_A`), which the model keeps as such; the order is that of the model's experts.
        layers: the layers that have experts.
    """
    ranks = [rank_of(tensors) for tensors in experts.values()]
    low_rank = any(rank is not None for rank in ranks)
    config = moe_config(seed.model.config, list(experts), router, ranks if low_rank else None)
    model = UNIFIED_MODELS[type(seed.model)](config)
    members = {f"experts.{index}": tensors for index, tensors in enumerate(experts.values())}
    if low_rank or config.keeps_seed_ffn:
        members["base" if low_rank else f"experts.{len(experts)}"] = ffn_tensors(seed, layers)
    own_state = model.state_dict()
    moved = {name for layer in layers for name in ffn_parameter_names(seed.architecture, seed.model, layer).values()}
    state = {name: tensor for name, tensor in seed.model.state_dict().items() if name not in moved}
    for place, tensors in members.items():
        for neutral, tensor in tensors.items():
            layer, name = stored_name(neutral)
            state[f"{layers_path(model, seed.architecture)}.{layer}.{seed.architecture.ffn}.{place}.{name}"] = tensor
    routers = {name: tensor for name, tensor in own_state.items() if ".router." in name}
    model.load_state_dict({**state, **routers}, strict=True)
    return model.eval().requires_grad_(False)


def moe_config(
    seed: Any, names: Sequence[str], router: RouterSettings, ranks: Sequence[int | None] | None = None
) -> Any:
    """The configuration of a unified model.

    Args:
        seed: the seed's configuration.
        names: of the experts, in their order.
        ranks: of the experts that are kept as factors, None for the others; None = all have full matrices.
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
        expert_ranks=None if ranks is None else list(ranks),
    )


def stored_name(neutral: str) -> tuple[str, str]:
    """Layer, and name within an expert of a unified model: `layers.1.up_proj.lora_A` → `1`, `up_proj_A`."""
    _, layer, name = neutral.split(".", 2)
    return layer, name.replace(".lora_", "_")
