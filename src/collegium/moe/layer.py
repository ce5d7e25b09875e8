"""The MoE layer that stands where a seed layer had its feed-forward network."""

from torch import Tensor, nn

from .context import RoutingState, current_state, masked_mean
from .experts import FeedForward, dispatch
from .router import Router


class MoEFeedForward(nn.Module):
    """Experts, with a router of its own or the decision of an earlier layer.

    Args:
        layer: index of the layer, from 0.
        dim: hidden size.
        inner: inner size of an expert.
        activation: name of the activation, as in transformers.
        num_experts: networks in `experts`; where `context` is `seed` or there is a fallback, the last is the seed's.
        context: `token`, `sequence` or `seed`: what the router sees beside the token.
        router: None where an earlier layer decides.
        share_decision: whether later layers reuse the decision taken here (`decide: once`).
    """

    def __init__(
        self,
        layer: int,
        dim: int,
        inner: int,
        activation: str,
        num_experts: int,
        context: str,
        router: Router | None,
        share_decision: bool,
    ):
        super().__init__()
        self.layer, self.context, self.share_decision = layer, context, share_decision
        self.router = router
        self.experts = nn.ModuleList(FeedForward(dim, inner, activation) for _ in range(num_experts))

    def forward(self, hidden: Tensor) -> Tensor:
        """[items, tokens, dim] → [items, tokens, dim]."""
        state = current_state()
        if state.seed_pass:
            state.seed_means[self.layer] = masked_mean(hidden, state.mask)
            return self.experts[-1](hidden)
        if self.router is not None:
            state.decision = state.routings[self.layer] = self.router(hidden, self._context(hidden, state))
        routing = state.decision
        if routing is None:
            raise RuntimeError(f"layer {self.layer} has no router, and no earlier layer has decided")
        if not self.share_decision:
            state.decision = None
        items, tokens, dim = hidden.shape
        output = dispatch(
            hidden.reshape(items * tokens, dim),
            routing.experts.reshape(items * tokens, -1),
            routing.weights.reshape(items * tokens, -1),
            self.experts,
        )
        return output.reshape(items, tokens, dim)

    def _context(self, hidden: Tensor, state: RoutingState) -> Tensor | None:
        if self.context == "token":
            return None
        if self.context == "seed":
            return state.seed_means[self.layer]
        return masked_mean(hidden, state.mask)
