"""Experts that are low-rank changes of one base network: each matrix W of the base becomes W + B A (LoRA).

LoRA (Hu et al. 2021, arXiv:2106.09685) trains a few numbers an expert, and they are all that is kept of it: one base
network and the factors instead of as many networks as experts. Maps are linear, so what the experts of a token have in
common is computed once for the token:

    (W + B A) z = W z + B (A z)                                  gate and up
    Σ_e w_e (D + B_e A_e) h_e = D Σ_e w_e h_e + Σ_e B_e A_e w_e h_e      down; h_e = expert e's inner activations

For k experts a token that is one network and k low-rank terms instead of k networks.

The scale of LoRA is in B. Factors are named `up_proj_A` and `up_proj_B`: PEFT takes every name with `lora_` for one of
its own adapters, and would train it along.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class LowRankExpert(nn.Module):
    """The factors of one expert; it has no forward of its own, because it needs the base's products.

    Args:
        shapes: matrix → its (outputs, inputs) in the base.
        rank: of all factors; 0 = no factors, the base itself.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]], rank: int):
        super().__init__()
        self.shapes, self.rank = shapes, rank
        for matrix, (outputs, inputs) in shapes.items() if rank else ():
            self.register_parameter(f"{matrix}_A", nn.Parameter(torch.empty(rank, inputs)))
            self.register_parameter(f"{matrix}_B", nn.Parameter(torch.zeros(outputs, rank)))
            nn.init.kaiming_uniform_(self.get_parameter(f"{matrix}_A"), a=math.sqrt(5))  # the expert starts as the base

    def change(self, matrix: str, inputs: Tensor) -> Tensor:
        """B (A z); [rows, inputs] → [rows, outputs]."""
        if self.rank == 0:
            return inputs.new_zeros(len(inputs), self.shapes[matrix][0])
        reduced = nn.functional.linear(inputs, self.get_parameter(f"{matrix}_A"))  # [rows, rank]
        return nn.functional.linear(reduced, self.get_parameter(f"{matrix}_B"))


class Share(NamedTuple):
    """The rows that an expert gets.

    Attributes:
        rows: which of them; [taken].
        weights: of the expert's output for each; [taken, 1].
    """

    expert: Any
    rows: Tensor
    weights: Tensor


def add_low_rank_outputs(output: Tensor, hidden: Tensor, base: Any, shares: Sequence[Share]) -> None:
    """Add the weighted outputs of low-rank experts to `output`, in its precision; every row meets the base once.

    Args:
        output: [rows, dim].
        hidden: [rows, dim].
        base: the `FeedForward` that the experts change.
        shares: of `LowRankExpert`s.
    """
    counts = [len(share.rows) for share in shares]
    taken = torch.cat([share.rows for share in shares])  # a row as often as it has experts
    rows, places = taken.unique(return_inverse=True)  # rows that meet full experts alone are not in it
    alone = len(rows) == len(taken)
    if alone:  # in the order of the experts nothing has to be gathered, and no gradient to be scattered
        rows, places = taken, torch.arange(len(taken), device=taken.device)
    owned = places.split(counts)

    def parts(values: Tensor) -> Iterable[Tensor]:
        """What each expert gets of [rows, …], gathered when its turn comes."""
        return values.split(counts) if alone else (values[own] for own in owned)

    given = hidden[rows]
    products = [base.get_submodule(matrix)(given) for matrix in base.entries]  # each [rows, inner]
    combined = torch.zeros(products[0].shape, dtype=output.dtype, device=output.device)
    total = torch.zeros(len(rows), 1, dtype=output.dtype, device=output.device)
    for share, own, inputs, *common in zip(shares, owned, parts(given), *map(parts, products), strict=True):
        changes = [share.expert.change(matrix, inputs) for matrix in base.entries]
        entered = [product + change for product, change in zip(common, changes, strict=True)]
        inner = base.activated(*entered).to(output.dtype) * share.weights  # [taken, inner]
        combined.index_add_(0, own, inner)
        total.index_add_(0, own, share.weights.to(output.dtype))
        change = share.expert.change("down_proj", inner.to(hidden.dtype))
        output.index_add_(0, share.rows, change.to(output.dtype))
    result = base.down_proj(combined.to(hidden.dtype)).to(output.dtype)
    if base.down_proj.bias is not None:
        result = result + (total - 1.0) * base.down_proj.bias  # it is in there once, not `total` times
    output.index_add_(0, rows, result)
