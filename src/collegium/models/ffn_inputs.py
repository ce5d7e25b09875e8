"""What a router would see: the mean FFN input of every text or picture, at chosen layers.

For each text, the mean over its real tokens of z, the input of the layer's feed-forward network (MetaMoE, stage 2).
The published code counts padding and takes a mean of batch means; here the mean is masked and for each example. The
pass stops after the last layer asked for: with a decision at layer 1 of 6 it costs a third of a full one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import nn

from collegium.data.items import Item
from collegium.models.encoder import Encoder, batches_by_length, token_mask
from collegium.moe.architectures import Architecture, layers_of


def ffn_input_means(
    encoder: Encoder,
    architecture: Architecture,
    texts: Sequence[Item],
    layers: Sequence[int],
    batch_size: int = 64,
) -> Iterator[tuple[list[int], Float64[np.ndarray, "items layers dim"]]]:
    """Yield batches of (rows, means) that together cover all texts once.

    Args:
        encoder: the seed, or an expert as a dense model.
        layers: indices from 0, ascending.
    """
    modules = layers_of(encoder.model, architecture)
    for rows, inputs in batches_by_length(encoder, texts, batch_size):
        seen = _run(encoder, [modules[layer].get_submodule(architecture.ffn) for layer in layers], inputs)
        mask = token_mask(inputs, seen[0]).unsqueeze(-1).double()
        means = [((z.double() * mask).sum(dim=1) / mask.sum(dim=1)).cpu().numpy() for z in seen]
        yield rows, np.stack(means, axis=1)


def norm_bound(encoder: Encoder, architecture: Architecture, layer: int) -> float:
    """B: no text can have a mean FFN input longer than this (L2), whatever it says.

    Where z is the output of a normalisation, γ ∘ x̂ + β with ‖x̂‖ ≤ √d (LayerNorm and RMSNorm; Gemma's γ is 1 + weight),
    ‖z‖ ≤ max|γ| √d + ‖β‖. In OLMo-2 z is the residual stream itself: an embedding and the normalised outputs of the
    sublayers before, so that their bounds add up. A mean is no longer. B depends on the public seed alone.
    """
    layers = layers_of(encoder.model, architecture)
    if architecture.norm:
        return _longest_output(layers[layer].get_submodule(architecture.norm), architecture.norm_offset)
    embedding: Any = encoder.model.base_model.get_submodule(architecture.embedding)
    bound = float(embedding.weight.detach().double().norm(dim=1).max())
    after_attention, after_ffn = architecture.residual_norms
    for index in range(layer + 1):
        bound += _longest_output(layers[index].get_submodule(after_attention))
        if index < layer:
            bound += _longest_output(layers[index].get_submodule(after_ffn))
    return bound


def _longest_output(norm: nn.Module, offset: float = 0.0) -> float:
    parameters = {name: parameter.detach().double() for name, parameter in norm.named_parameters()}
    gamma = parameters["weight"] + offset
    beta = parameters.get("bias")
    return float(gamma.abs().max() * gamma.numel() ** 0.5 + (0.0 if beta is None else beta.norm()))


class _Enough(Exception):
    """Raised by the last hook to end the forward pass."""


def _run(encoder: Encoder, modules: Sequence[nn.Module], inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []

    def record(_module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        seen.append(arguments[0])
        if len(seen) == len(modules):
            raise _Enough

    hooks = [module.register_forward_pre_hook(record) for module in modules]
    try:
        with torch.inference_mode():
            encoder.model(**inputs)
    except _Enough:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return seen
