"""The router: linear scores of the (context of the) FFN input, one for each expert.

    logits = (W (z̃ − centre) + b) / temperature          z̃ = (1−λ) z_t + λ z_x

All of it is affine in z, so logits(z̃) = (1−λ) logits(z_t) + λ logits(z_x), and the logits of a mean are the mean of
the logits.

Deviations from the published code, whose top-1 weights are always exactly 1 and give router and λ no gradient:
`straight-through` weights are `1 + (p − stop_gradient(p))`: exactly 1 in the forward pass, gradient of p in the
backward pass (Bengio et al. 2013, arXiv:1308.3432). `softmax` is the weight of Switch (arXiv:2101.03961);
`renormalised` is the published one. Always in float32: bfloat16 flips near-ties.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

Context = Callable[
    [Tensor], Tensor
]  # scores of the tokens → scores of z_x; [items, tokens, E] → [items, tokens or 1, E]


class Routing(NamedTuple):
    """A decision for every token.

    Attributes:
        experts: chosen experts, best first; [items, tokens, experts_per_token].
        weights: their weights; [items, tokens, experts_per_token].
        logits: scores of all experts, −inf of inactive ones; [items, tokens, experts].
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
        self.weighting, self.learn_context_weight = weighting, learn_context_weight
        self.weight = nn.Parameter(torch.zeros(num_experts, dim, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(num_experts, dtype=torch.float32))
        self.context_weight = nn.Parameter(torch.zeros((), dtype=torch.float32), requires_grad=learn_context_weight)
        self.centre = nn.Parameter(torch.zeros(dim, dtype=torch.float32), requires_grad=False)
        self.temperature = nn.Parameter(torch.ones((), dtype=torch.float32), requires_grad=False)
        # bool, [experts]; None = all may be picked. Never saved: who is active is a choice of the moment.
        self.inactive: Tensor | None
        self.register_buffer("inactive", None, persistent=False)

    def forward(self, hidden: Tensor, context: Context | None) -> Routing:
        """Route every token.

        Args:
            hidden: FFN inputs z_t; [items, tokens, dim].
            context: from the tokens' scores to those of z_x; None for `context: token`.
        """
        logits = self.scores(hidden, context)  # [items, tokens, experts]
        probabilities = logits.softmax(dim=-1)
        chosen, experts = probabilities.topk(self.experts_per_token, dim=-1)
        return Routing(
            experts=experts,
            weights=self._weights(chosen),
            logits=logits,
            supervised_logits=self.scores(hidden.detach(), context) if torch.is_grad_enabled() else logits,
        )

    def scores(self, hidden: Tensor, context: Context | None) -> Tensor:
        """Logits of all experts, −inf of inactive ones; [items, tokens, experts]."""
        scores = self.linear(hidden)
        if context is not None:
            weight = self._clamped_context_weight()
            scores = (1.0 - weight) * scores + weight * context(scores)
        # Last, so that contexts and the memory of a cache hold finite scores of everybody: 0 · −inf is no number.
        return scores if self.inactive is None else scores.masked_fill(self.inactive, float("-inf"))

    def linear(self, hidden: Tensor) -> Tensor:
        """Scores without context; [..., dim] → [..., experts], in float32 under autocast too."""
        with torch.autocast(hidden.device.type, enabled=False):
            # Detached: a library that makes the whole router trainable (PEFT's modules_to_save) must not move these.
            centre, temperature = self.centre.detach().float(), self.temperature.detach().float()
            return nn.functional.linear(hidden.float() - centre, self.weight.float(), self.bias.float()) / temperature

    def _clamped_context_weight(self) -> Tensor:
        # In [0, 1]; the gradient passes the clamp, otherwise λ would stay outside for good once it left.
        weight = self.context_weight.float() if self.learn_context_weight else self.context_weight.detach().float()
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
