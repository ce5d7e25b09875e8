"""A unified model's folder as if all its experts were whole matrices: W + B A is computed when a tensor is read.

For exports: no other program's Mixture of Experts knows experts that are factors beside one base.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from collegium.core.errors import ArtifactError
from collegium.unify.adapter import add_low_rank
from collegium.unify.tensor_files import TensorFiles

BASE, EXPERTS = ".base.", ".experts."


class WholeExperts(TensorFiles):
    """The tensors of a folder whose experts have these ranks; one matrix at a time is in memory.

    Args:
        ranks: of the experts in their order, 0 for the base itself, None for those that are whole matrices.
    """

    def __init__(self, folder: Path, ranks: Sequence[int | None]):
        self._bases: dict[str, tuple[str, str]] = {}  # name of a whole matrix → its base's, what its factors start with
        super().__init__(folder)
        for base in (name for name in super().names if BASE in name):
            for index, rank in enumerate(ranks):
                if rank is not None:
                    before, _, parameter = base.rpartition(BASE)
                    name = f"{before}{EXPERTS}{index}.{parameter}"
                    factors = name.removesuffix(".weight") if rank and name.endswith(".weight") else ""
                    self._bases[name] = (base, factors)

    @property
    def names(self) -> list[str]:
        own = [name for name in super().names if BASE not in name and not self._is_factor(name)]
        return sorted([*own, *self._bases])

    def shape(self, name: str) -> tuple[int, ...]:
        return super().shape(self._stored(name))

    def dtype(self, name: str) -> str:
        return super().dtype(self._stored(name))

    def read(self, name: str) -> Tensor:
        base, factors = self._bases.get(name, (name, ""))
        weight = super().read(base)
        if not factors:
            return weight
        lora_a, lora_b = (super(WholeExperts, self).read(f"{factors}_{kind}").float() for kind in "AB")
        if (lora_b.shape[0], lora_a.shape[1]) != weight.shape or lora_a.shape[0] != lora_b.shape[1]:
            raise ArtifactError(
                f"The factors of {name} do not fit its base.",
                got=f"{list(lora_b.shape)} · {list(lora_a.shape)}",
                expected=list(weight.shape),
            )
        return add_low_rank(weight.float(), lora_a, lora_b, 1.0).to(weight.dtype)

    def _stored(self, name: str) -> str:
        return self._bases.get(name, (name, ""))[0]

    def _is_factor(self, name: str) -> bool:
        return EXPERTS in name and name.endswith(("_A", "_B"))
