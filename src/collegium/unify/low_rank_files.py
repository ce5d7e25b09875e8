"""A unified model's tensors as if all its experts were whole matrices: W + B A is computed as it is written.

For exports: no other program's Mixture of Experts knows experts that are factors beside one base.
"""

from collections.abc import Mapping, Sequence

from collegium.core.errors import ArtifactError
from collegium.unify.adapter import LowRank
from collegium.unify.checkpoint import Source, StoredTensor, whole

BASE, EXPERTS = ".base.", ".experts."


def whole_experts(
    tensors: Mapping[str, StoredTensor], ranks: Sequence[int | None]
) -> tuple[dict[str, StoredTensor], dict[str, Source]]:
    """(name → tensor that has its shape and dtype, name → its values, where these are not that tensor's own).

    Args:
        ranks: of the experts in their order, 0 for the base itself, None for those that are whole matrices.

    Raises:
        ArtifactError: factors that are missing or do not fit the base.
    """
    found = {name: tensor for name, tensor in tensors.items() if BASE not in name and not _is_factor(name)}
    values: dict[str, Source] = {}
    for base, tensor in tensors.items():
        before, inside, parameter = base.rpartition(BASE)
        for index, rank in enumerate(ranks) if inside else ():
            if rank is None:
                continue
            name = f"{before}{EXPERTS}{index}.{parameter}"
            found[name] = tensor
            if rank > 0 and name.endswith(".weight"):
                values[name] = _with_factors(tensor, tensors, name)
    return found, values


def _is_factor(name: str) -> bool:
    return EXPERTS in name and name.endswith(("_A", "_B"))


def _with_factors(base: StoredTensor, tensors: Mapping[str, StoredTensor], name: str) -> LowRank:
    stored = [tensors.get(f"{name.removesuffix('.weight')}_{kind}") for kind in "AB"]
    shapes = [[] if factor is None else list(factor.shape) for factor in stored]
    a, b = stored
    if a is None or b is None or [len(a.shape), len(b.shape)] != [2, 2] or b.shape[1] != a.shape[0]:
        raise ArtifactError(f"The factors of {name} do not fit its base.", got=shapes, expected=list(base.shape))
    if (b.shape[0], a.shape[1]) != base.shape:
        raise ArtifactError(f"The factors of {name} do not fit its base.", got=shapes, expected=list(base.shape))
    return LowRank(base, whole(a).float(), whole(b).float(), 1.0)
