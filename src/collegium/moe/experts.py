"""Experts and their dispatch: every token runs through its own experts only.

One stable sort by expert, one chain of linear maps for each expert, one `index_add_`: near k times the cost of one
dense FFN once an expert gets about 100 tokens. Cost: O(tokens · experts_per_token · dim · inner).
"""

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN


class FeedForward(nn.Module):
    """One feed-forward network: hidden → inner → hidden; with a gate, down(act(gate z) ∘ up z)."""

    def __init__(self, dim: int, inner: int, activation: str, gated: bool = False, bias: bool = True):
        super().__init__()
        if gated:
            self.gate_proj = nn.Linear(dim, inner, bias=bias)
        self.up_proj = nn.Linear(dim, inner, bias=bias)
        self.down_proj = nn.Linear(inner, dim, bias=bias)
        self.gated = gated
        self.activation = ACT2FN[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        if self.gated:
            return self.down_proj(self.activation(self.gate_proj(hidden)) * self.up_proj(hidden))
        return self.down_proj(self.activation(self.up_proj(hidden)))


def dispatch(hidden: Tensor, chosen: Tensor, weights: Tensor, experts: nn.ModuleList) -> Tensor:
    """Weighted sum of the chosen experts' outputs.

    Args:
        hidden: [rows, dim].
        chosen: indices into `experts`; [rows, k].
        weights: float32; [rows, k].

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
    start = 0
    for expert, count in zip(experts, counts, strict=True):
        if count == 0:
            continue
        part = slice(start, start + count)
        start += count
        result = expert(hidden[rows[part]]).to(precise) * flat_weights[order[part]]
        output.index_add_(0, rows[part], result)
    return output.to(hidden.dtype)
