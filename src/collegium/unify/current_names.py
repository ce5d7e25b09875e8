"""Tensor names as the installed transformers has them in memory, whatever version and class wrote the checkpoint.

Files keep the names that they were born with: `LayerNorm.gamma`, ViT's `encoder.layer.0.intermediate.dense`, a prefix
`bert.` or none. transformers renames while it loads a model; merging loads none, so that it asks transformers for the
same renaming. Only names change: no family of ours needs its values rearranged.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from collegium.moe.modeling import UNIFIED_MODELS
from collegium.unify.checkpoint import Checkpoint

Rename = Callable[[str], str]


def current_name(config: Any, unified: Any) -> Rename:
    """Name in a checkpoint → name in the class that a seed is loaded as.

    Args:
        config: the seed's.
        unified: the class that the seed's becomes.
    """
    seed_class: Any = next(seed for seed, ours in UNIFIED_MODELS.items() if ours is unified)
    with torch.device("meta"):
        model = seed_class(config)
    renamings = [rule for rule in get_model_conversion_mapping(model) if isinstance(rule, WeightRenaming)]
    known = dict(model.state_dict())

    def rename(name: str) -> str:
        return rename_source_key(name, renamings, [], model.base_model_prefix, known)[0]

    return rename


def renamed(checkpoint: Checkpoint, rename: Rename) -> Checkpoint:
    """A checkpoint under current names."""
    return replace(checkpoint, tensors={rename(name): tensor for name, tensor in checkpoint.tensors.items()})
