"""Which tensor of a merged model comes from which expert: the plan that `byte_merge` carries out.

On disk there is one tensor for each expert and matrix, `{layers}.{i}.{ffn}.experts.{e}.{matrix}.{parameter}`, so that
merging is copying. Everything else keeps the seed's name. An expert that is kept as LoRA factors has `{matrix}_A` and
`{matrix}_B` instead, and the seed's own tensors are there once, as `{ffn}.base`.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from collegium.moe.architectures import Architecture
from collegium.unify.adapter import LowRank
from collegium.unify.byte_merge import Average, Constant, Output
from collegium.unify.checkpoint import FLOATS, Checkpoint, Source, StoredTensor, layer_prefix
from collegium.unify.compatibility import Shared


def ffn_of(seed: Checkpoint, architecture: Architecture, layers: Collection[int] | None = None) -> dict[str, str]:
    """The seed's FFN tensors in some layers (None = all): name in the checkpoint → neutral name."""
    start = layer_prefix(seed.tensors, architecture.layers) + architecture.layers + "."
    found = {}
    for name in seed.tensors:
        layer, _, path = name.removeprefix(start).partition(".")
        if not name.startswith(start) or (layers is not None and int(layer) not in layers):
            continue
        for matrix, module in architecture.matrices.items():
            if path.startswith(module + "."):
                found[name] = f"layers.{layer}.{matrix}.{path.removeprefix(module + '.')}"
    return found


def num_layers(seed: Checkpoint, architecture: Architecture) -> int:
    return 1 + max((int(neutral.split(".")[1]) for neutral in ffn_of(seed, architecture).values()), default=-1)


def kept_rank(expert: Checkpoint, seed: Checkpoint, ffn: Collection[str]) -> int | None:
    """The largest rank among the factors that an expert can be kept as; None where it has a whole matrix.

    0 = it is the seed in these layers. DoRA stretches the rows of W + B A, which factors alone do not say.
    """
    rank = 0
    for name in ffn:
        source = expert.tensors.get(name)
        if isinstance(source, LowRank) and source.lengths is None:
            rank = max(rank, source.lora_a.shape[0])
        elif source is not seed.tensors[name]:
            return None
    return rank


def moe_outputs(
    seed: Checkpoint,
    experts: Mapping[str, Checkpoint],
    architecture: Architecture,
    ffn: Mapping[str, str],
    routers: Mapping[int, Mapping[str, Float[Tensor, "..."]]],
    dtype: str,
    shared: Shared,
    keeps_seed_ffn: bool,
    ranks: Sequence[int | None] | None = None,
) -> list[Output]:
    """Every tensor of the merged model, under the seed's names; routers in float32, all else in `dtype`.

    Args:
        experts: with the seed's names; the order is the order of the model's experts.
        ffn: the tensors that become experts (`ffn_of`).
        routers: layer → the router's own tensors.
        keeps_seed_ffn: the seed's FFN is one more expert, the last.
        ranks: of the experts that are kept as factors, None for the others; None = all are whole matrices.
    """
    moe = layer_prefix(seed.tensors, architecture.layers) + architecture.layers
    whole = [None] * len(experts) if ranks is None else ranks
    members = [*zip(experts.values(), whole, strict=True), *([(seed, 0 if ranks else None)] if keeps_seed_ffn else [])]
    outputs = []
    for name, own in seed.tensors.items():
        if name in ffn:
            _, layer, matrix, parameter = ffn[name].split(".", 3)
            place = f"{moe}.{layer}.{architecture.ffn}"
            if ranks is not None:
                outputs.append(_output(f"{place}.base.{matrix}.{parameter}", own, dtype))
            for index, (member, rank) in enumerate(members):
                if rank is None:
                    outputs.append(
                        _output(f"{place}.experts.{index}.{matrix}.{parameter}", member.tensors[name], dtype)
                    )
                elif rank > 0 and parameter == "weight":
                    factors = _factors(member.tensors[name], rank)
                    outputs += [
                        Output(f"{place}.experts.{index}.{matrix}_{kind}", dtype, Constant(factor))
                        for kind, factor in zip("AB", factors, strict=True)
                    ]
        else:
            variants = [expert.tensors[name] for expert in experts.values()] if shared == "average" else []
            source = Average(variants) if any(variant is not own for variant in variants) else own
            outputs.append(_output(name, source, dtype))
    return outputs + [
        Output(f"{moe}.{layer}.{architecture.ffn}.router.{key}", "F32", Constant(tensor.float()))
        for layer, router in sorted(routers.items())
        for key, tensor in router.items()
    ]


def _output(name: str, source: Source, dtype: str) -> Output:
    stays = isinstance(source, StoredTensor) and source.dtype not in FLOATS
    return Output(name, source.dtype if stays else dtype, source)  # pyright: ignore[reportAttributeAccessIssue]


def _factors(source: Source, rank: int) -> tuple[Float[Tensor, "rank inputs"], Float[Tensor, "outputs rank"]]:
    """A, and B with its scale, filled up with zeros to the expert's rank; zeros for a weight that is the seed's."""
    lora_a, lora_b = torch.zeros(rank, source.shape[1]), torch.zeros(source.shape[0], rank)
    if isinstance(source, LowRank):
        own = source.lora_a.shape[0]
        lora_a[:own], lora_b[:, :own] = source.lora_a, source.scale * source.lora_b
    return lora_a, lora_b
