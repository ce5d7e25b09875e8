"""Which tensor of a merged model comes from which expert: the plan that `byte_merge` carries out.

On disk there is one tensor for each expert and matrix, `{layers}.{i}.{ffn}.experts.{e}.{matrix}.{parameter}`, so that
merging is copying. Everything else keeps the seed's name.
"""

from collections.abc import Collection, Mapping

from jaxtyping import Float
from torch import Tensor

from collegium.moe.architectures import Architecture
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


def moe_outputs(
    seed: Checkpoint,
    experts: Mapping[str, Checkpoint],
    architecture: Architecture,
    ffn: Mapping[str, str],
    routers: Mapping[int, Mapping[str, Float[Tensor, "..."]]],
    dtype: str,
    shared: Shared,
    keeps_seed_ffn: bool,
) -> list[Output]:
    """Every tensor of the merged model, under the seed's names; routers in float32, all else in `dtype`.

    Args:
        experts: with the seed's names; the order is the order of the model's experts.
        ffn: the tensors that become experts (`ffn_of`).
        routers: layer → the router's own tensors.
        keeps_seed_ffn: the seed's FFN is one more expert, the last.
    """
    moe = layer_prefix(seed.tensors, architecture.layers) + architecture.layers
    members = [*experts.values(), *([seed] if keeps_seed_ffn else [])]
    outputs = []
    for name, own in seed.tensors.items():
        if name in ffn:
            _, layer, matrix, parameter = ffn[name].split(".", 3)
            outputs += [
                _output(f"{moe}.{layer}.{architecture.ffn}.experts.{index}.{matrix}.{parameter}", source, dtype)
                for index, source in enumerate(member.tensors[name] for member in members)
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
