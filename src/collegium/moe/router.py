"""The router: linear scores of the (context of the) FFN input, one for each expert.

    logits = (W (z̃ − centre) + b) / temperature          z̃ = (1−λ) z_t + λ z_x

Deviations from the published code, whose top-1 weights are always exactly 1 and give router and λ no gradient:
`straight-through` weights are `1 + (p − stop_gradient(p))`: exactly 1 in the forward pass, gradient of p in the
backward pass (Bengio et al. 2013, arXiv:1308.3432). `softmax` is the weight of Switch (arXiv:2101.03961);
`renormalised` is the published one. Always in float32: bfloat16 flips near-ties.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Routing(NamedTuple):
    """A decision for every token.

    Attributes:
        experts: chosen experts, best first; [items, tokens, experts_per_token].
        weights: their weights; [items, tokens, experts_per_token].
        logits: scores of all experts; [items, tokens, experts].
        supervised_logits: the same scores from detached inputs: a loss on them trains the router alone.
    """

    experts: Tensor
    weights: Tensor
    logits: Tensor
    supervised_logits: Tensor


class Router(nn.Module):
    """Scores experts and picks the best.

    Args:
        dim: hidden size.
        num_experts: experts that may be picked, the fallback included.
        experts_per_token: k, 1 or more.
        weighting: `straight-through`, `renormalised` or `softmax`.
        learn_context_weight: whether λ is a parameter that joint tuning moves.
    """

    def __init__(
        self,
        dim: int,
        num_experts: int,
        experts_per_token: int = 1,
        weighting: str = "straight-through",
        learn_context_weight: bool = False,
    ):
        super().__init__()
        self.experts_per_token = min(experts_per_token, num_experts)
        self.weighting = weighting
        self.weight = nn.Parameter(torch.zeros(num_experts, dim, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(num_experts, dtype=torch.float32))
        self.context_weight = nn.Parameter(torch.zeros((), dtype=torch.float32), requires_grad=learn_context_weight)
        self.centre = nn.Parameter(torch.zeros(dim, dtype=torch.float32), requires_grad=False)
        self.temperature = nn.Parameter(torch.ones((), dtype=torch.float32), requires_grad=False)

    def forward(self, hidden: Tensor, context: Tensor | None) -> Routing:
        """Route every token.

        Args:
            hidden: FFN inputs z_t; [items, tokens, dim].
            context: z_x; [items, dim], or None for `context: token`.
        """
        logits = self.scores(hidden, context)  # [items, tokens, experts]
        probabilities = logits.softmax(dim=-1)
        chosen, experts = probabilities.topk(self.experts_per_token, dim=-1)
        return Routing(
            experts=experts,
            weights=self._weights(chosen),
            logits=logits,
            supervised_logits=self.scores(hidden.detach(), None if context is None else context.detach())
            if torch.is_grad_enabled()
            else logits,
        )

    def scores(self, hidden: Tensor, context: Tensor | None) -> Tensor:
        """Logits of all experts; [items, tokens, experts]."""
        token_scores = self._linear(hidden)
        if context is None:
            return token_scores
        weight = self._clamped_context_weight()
        return (1.0 - weight) * token_scores + weight * self._linear(context).unsqueeze(1)

    def _linear(self, hidden: Tensor) -> Tensor:
        centred = hidden.float() - self.centre.float()
        return nn.functional.linear(centred, self.weight.float(), self.bias.float()) / self.temperature.float()

    def _clamped_context_weight(self) -> Tensor:
        # In [0, 1]; the gradient passes the clamp, otherwise λ would stay outside for good once it left.
        weight = self.context_weight.float()
        return weight + (weight.clamp(0.0, 1.0) - weight).detach()

    def _weights(self, chosen: Tensor) -> Tensor:
        if self.weighting == "softmax":
            return chosen
        renormalised = chosen / chosen.sum(dim=-1, keepdim=True)
        if self.weighting == "renormalised":
            return renormalised
        if self.experts_per_token == 1:
            return 1.0 + (chosen - chosen.detach())  # in this order the value is exactly 1
        return renormalised
