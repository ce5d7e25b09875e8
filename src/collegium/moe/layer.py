"""The MoE layer that stands where a seed layer had its feed-forward network."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .context import RoutingState, current_state, masked_mean, running_mean, running_totals
from .experts import FeedForward, dispatch
from .low_rank import LowRankExpert
from .memory import RoutingMemory, TokenMemory, check_past, memory_of
from .router import Context, Router, Routing


class MoEFeedForward(nn.Module):
    """Experts, with a router of its own or the decision of an earlier layer.

    Args:
        layer: index of the layer, from 0.
        slot: which of the routed layers it is, from 0: the place of its memory in a cache.
        num_layers: layers of the model.
        experts: as many as can be picked; with `context: seed`, a fallback or a warm-up the last is the seed's.
        context: `token`, `sequence`, `causal` or `seed`: what the router sees beside the token.
        router: None where an earlier layer decides.
        share_decision: whether later layers reuse the decision taken here (`decide: once`).
        warmup_tokens: with `causal`, tokens with fewer than so many up to themselves take the seed's FFN.
        base: the seed's FFN, where experts are low-rank changes of it.
    """

    def __init__(
        self,
        layer: int,
        slot: int,
        num_layers: int,
        experts: Sequence[FeedForward | LowRankExpert],
        context: str,
        router: Router | None,
        share_decision: bool,
        warmup_tokens: int = 0,
        base: FeedForward | None = None,
    ):
        super().__init__()
        self.layer, self.slot, self.num_layers = layer, slot, num_layers
        self.context, self.share_decision, self.warmup_tokens = context, share_decision, warmup_tokens
        self.router = router
        self.base = base
        self.experts = nn.ModuleList(experts)

    def forward(self, hidden: Tensor) -> Tensor:
        """[items, tokens, dim] → [items, tokens, dim]."""
        state = current_state()
        if state.seed_pass:
            if self.router is not None:
                state.seed_means[self.layer] = masked_mean(hidden, state.prompt)
            return (self.experts[-1] if self.base is None else self.base)(hidden)
        if self.router is not None:
            state.decision = state.routings[self.layer] = self._decide(self.router, hidden, state)
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
            self.base,
        )
        return output.reshape(items, tokens, dim)

    def _decide(self, router: Router, hidden: Tensor, state: RoutingState) -> Routing:
        if self.context == "token":
            return router(hidden, None)
        if self.context == "sequence":
            return router(hidden, lambda scores: masked_mean(scores, state.mask).unsqueeze(1))
        if self.context == "seed":
            return router(hidden, self._seed(router, state))
        before = self._remembered(router, hidden, state)
        routing = router(hidden, lambda scores: running_mean(running_totals(scores, state.mask, before)))
        if self.warmup_tokens == 0:
            return routing
        earlier = None if before is None else before[..., -1:]
        counts = running_totals(hidden[..., :0].float(), state.mask, earlier)  # [items, tokens, 1]
        return with_seed_first(routing, counts < self.warmup_tokens, seed_expert=len(self.experts) - 1)

    def _remembered(self, router: Router, hidden: Tensor, state: RoutingState) -> Tensor | None:
        """Totals at the last token before this pass; those of this pass are put into the cache, if there is one."""
        if state.cache is None:
            return None
        memory = memory_of(state.cache, self.num_layers, self.slot, TokenMemory)
        earlier = memory.state
        check_past(0 if earlier is None else earlier.shape[1], state.past)
        before = None if earlier is None else earlier[:, -1:]
        with torch.no_grad():
            new = running_totals(router.linear(hidden), state.mask, before)
        memory.state = new if earlier is None else torch.cat([earlier, new], dim=1)
        return before

    def _seed(self, router: Router, state: RoutingState) -> Context:
        """The mean in the seed's pass over the prompt: of this pass, or of the one that filled the cache."""
        means = state.seed_means.get(self.layer)
        if state.cache is not None:
            memory = memory_of(state.cache, self.num_layers, self.slot, RoutingMemory)
            if means is not None:
                memory.state = means
            check_past(0 if memory.state is None else state.past, state.past)
            means = memory.state
        assert means is not None
        scores = router.linear(means).unsqueeze(1)  # [items, 1, experts]
        return lambda _: scores


def with_seed_first(routing: Routing, early: Tensor, seed_expert: int) -> Routing:
    """The same routing, but tokens that come too early to be routed take the seed's FFN alone.

    Args:
        early: bool; [items, tokens, 1].
        seed_expert: index of the seed's FFN.
    """
    alone = torch.zeros_like(routing.weights)
    alone[..., 0] = 1.0
    return routing._replace(
        experts=torch.where(early, seed_expert, routing.experts), weights=torch.where(early, alone, routing.weights)
    )
