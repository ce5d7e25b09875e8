"""Experts and their dispatch: every token runs through its own experts only.

One stable sort by expert, one chain of linear maps for each expert, one `index_add_`: near k times the cost of one
dense FFN once an expert gets about 100 tokens. Cost: O(tokens · experts_per_token · dim · inner). Low-rank experts
share the base's products (`low_rank.py`): O(tokens · dim · inner).
"""

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from .low_rank import LowRankExpert, Share, add_low_rank_outputs


class FeedForward(nn.Module):
    """One feed-forward network: hidden → inner → hidden; with a gate, down(act(gate z) ∘ up z)."""

    def __init__(self, dim: int, inner: int, activation: str, gated: bool = False, bias: bool = True):
        super().__init__()
        if gated:
            self.gate_proj = nn.Linear(dim, inner, bias=bias)
        self.up_proj = nn.Linear(dim, inner, bias=bias)
        self.down_proj = nn.Linear(inner, dim, bias=bias)
        self.entries = ("gate_proj", "up_proj") if gated else ("up_proj",)  # matrices before the activation
        self.activation = ACT2FN[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(self.activated(*[self.get_submodule(matrix)(hidden) for matrix in self.entries]))

    def activated(self, first: Tensor, up: Tensor | None = None) -> Tensor:
        """From the products of `entries` to the inner activations."""
        return self.activation(first) if up is None else self.activation(first) * up


def dispatch(
    hidden: Tensor, chosen: Tensor, weights: Tensor, experts: nn.ModuleList, base: FeedForward | None = None
) -> Tensor:
    """Weighted sum of the chosen experts' outputs.

    Args:
        hidden: [rows, dim].
        chosen: indices into `experts`; [rows, k].
        weights: float32; [rows, k].
        base: what the low-rank ones among the experts change.

    Returns:
        [rows, dim], in the dtype of `hidden`.
    """
    assignments = chosen.reshape(-1)  # [rows · k]
    order = assignments.argsort(stable=True)
    rows = order // chosen.shape[-1]
    counts = torch.bincount(assignments, minlength=len(experts)).tolist()
    flat_weights = weights.reshape(-1, 1)
    precise = torch.promote_types(hidden.dtype, torch.float32)
    output = torch.zeros(hidden.shape, dtype=precise, device=hidden.device)
    low_rank: list[Share] = []
    start = 0
    for expert, count in zip(experts, counts, strict=True):
        if count == 0:
            continue
        part = slice(start, start + count)
        start += count
        share = Share(expert, rows[part], flat_weights[order[part]])
        if isinstance(expert, LowRankExpert):
            low_rank.append(share)
        else:
            output.index_add_(0, share.rows, expert(hidden[share.rows]).to(precise) * share.weights)
    if low_rank:
        add_low_rank_outputs(output, hidden, base, low_rank)
    return output.to(hidden.dtype)
