"""Experts as named tensors: full FFN matrices, or LoRA factors beside the seed's; and one expert as a dense model."""

import copy
from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from collegium.core.recipe import TrainingSettings
from collegium.models.encoder import Encoder
from collegium.models.seed_model import SeedModel
from collegium.moe.architectures import ffn_parameter_names


def dense_model(seed: SeedModel, tensors: Mapping[str, Tensor]) -> Encoder:
    """The seed with one set of FFNs: a single expert, or a soup."""
    tensors = materialised(seed, tensors)
    model = copy.deepcopy(seed.model)
    state = model.state_dict()
    for layer in sorted({int(neutral.split(".")[1]) for neutral in tensors}):
        for neutral, own in ffn_parameter_names(seed.architecture, model, layer).items():
            state[own].copy_(tensors[neutral])
    return Encoder(model=model, tokenizer=seed.tokenizer, pooling=seed.pooling, max_length=seed.max_length)


def full_expert(seed: SeedModel, tensors: Mapping[str, Tensor], training: TrainingSettings) -> dict[str, Tensor]:
    """Full FFN tensors of a contributed expert; LoRA factors are merged, W + (lora_alpha / rank) · B A."""
    return materialised(seed, scaled_expert(tensors, training))


def scaled_expert(tensors: Mapping[str, Tensor], training: TrainingSettings) -> dict[str, Tensor]:
    """A contributed expert; with LoRA its scale goes into B, so that only the factors are needed from here on."""
    scale = training.lora_alpha / training.rank
    return {name: scale * tensor if name.endswith(".lora_B") else tensor for name, tensor in tensors.items()}


def materialised(seed: SeedModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full FFN tensors of an expert; where it has factors, W + B A."""
    if rank_of(tensors) is None:
        return dict(tensors)
    full = ffn_tensors(seed, sorted({int(name.split(".")[1]) for name in tensors}))
    for name in full:
        matrix = name.removesuffix(".weight")
        if name.endswith(".weight"):
            full[name] = add_low_rank(full[name], tensors[f"{matrix}.lora_A"], tensors[f"{matrix}.lora_B"], 1.0)
    return full


def rank_of(tensors: Mapping[str, Tensor]) -> int | None:
    """Rank of an expert's factors; None where it has full matrices."""
    return next((tensor.shape[0] for name, tensor in tensors.items() if name.endswith(".lora_A")), None)


def ffn_tensors(seed: SeedModel, layers: Sequence[int]) -> dict[str, Tensor]:
    """The seed's own FFN tensors under neutral names."""
    state = seed.model.state_dict()
    return {
        neutral: state[own].clone()
        for layer in layers
        for neutral, own in ffn_parameter_names(seed.architecture, seed.model, layer).items()
    }


def add_low_rank(
    weight: Float[Tensor, "outputs inputs"],
    lora_a: Float[Tensor, "rank inputs"],
    lora_b: Float[Tensor, "outputs rank"],
    scale: float,
) -> Float[Tensor, "outputs inputs"]:
    """W + scale · B A."""
    return weight + scale * lora_b @ lora_a
