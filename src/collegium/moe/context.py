"""What a router sees beside the token (MetaMoE §3.3: z̃_t = (1−λ) z_t + λ z_x), and the state of one forward pass.

    token      nothing
    sequence   the mean over the sequence, in the same pass (encoders, images)
    causal     the mean over the tokens so far (decoders): what is decided for a token never changes afterwards
    seed       the mean in an extra pass of the frozen seed, as published; in a decoder frozen on the prompt

The published code averages z_x over the batch (vision) and over padding; then an answer depends on its batch-mates.
Here a mean is masked and of one sequence. The router's scores are linear in z, so the scores are averaged instead of z:
E numbers a token instead of `dim`.

The state of one forward pass travels in a context variable, so that the layers need no extra argument, a copied
model keeps no old state, and two threads do not disturb each other.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .router import Routing


@dataclass
class RoutingState:
    """What the MoE layers of one forward pass share.

    Attributes:
        mask: 1 for a token, 0 for padding; [items, tokens]; None = all are tokens.
        prompt: 1 for a token of the prompt, over which `context: seed` averages; None = as `mask`.
        cache: the key-value cache, where the routing of later tokens depends on earlier ones.
        past: tokens in the cache before this pass, padding included.
        seed_pass: True while the frozen seed runs ahead to supply its means (`context: seed`).
        seed_means: layer → mean FFN input of the seed; [items, dim].
        decision: the routing that later layers reuse (`decide: once`).
        routings: layer → routing, for those who asked for the router's outputs.
        body: the model without its head, where that was called alone.
    """

    mask: Tensor | None
    prompt: Tensor | None = None
    cache: Any = None
    past: int = 0
    seed_pass: bool = False
    seed_means: dict[int, Tensor] = field(default_factory=dict)
    decision: Routing | None = None
    routings: dict[int, Routing] = field(default_factory=dict)
    body: Any = None


_STATE: ContextVar[RoutingState | None] = ContextVar("collegium_routing_state", default=None)


@contextmanager
def routing_state(state: RoutingState) -> Iterator[RoutingState]:
    """Make `state` the one that the layers see inside the block."""
    token = _STATE.set(state)
    try:
        yield state
    finally:
        _STATE.reset(token)


def in_pass() -> bool:
    """Whether a forward pass is running."""
    return _STATE.get() is not None


def open_state(state: RoutingState | None) -> None:
    """As `routing_state`, where the beginning and the end of the pass are two calls; None ends it."""
    _STATE.set(state)


def current_state() -> RoutingState:
    """The state of the running forward pass.

    Raises:
        RuntimeError: a layer was called outside the model's forward, where no padding mask is known.
    """
    state = _STATE.get()
    if state is None:
        raise RuntimeError("a MoE layer was called outside its model; call the model, which knows the padding mask")
    return state


class CheckpointWithState:
    """A gradient checkpointing function whose layers find their state again when the backward pass replays them.

    The backward pass runs outside the model's forward, on a GPU in another thread. A replayed layer sees the state as
    it was before its first run: what earlier layers had decided, and nothing of its own.
    """

    def __init__(self, checkpoint: Callable):
        self.checkpoint = checkpoint

    def __call__(self, function: Callable, *arguments: Any) -> Any:
        return self.checkpoint(_Replayable(function, replace(current_state(), routings={})), *arguments)


class _Replayable:
    def __init__(self, function: Callable, before: RoutingState):
        self.function, self.before, self.ran = function, before, False

    def __call__(self, *arguments: Any) -> Any:
        if not self.ran:
            self.ran = True
            return self.function(*arguments)
        with routing_state(replace(self.before)):
            return self.function(*arguments)


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the tokens of each sequence, in float32; [items, tokens, …] → [items, …]."""
    if mask is None:
        return values.float().mean(dim=1)
    tokens = mask.bool().unsqueeze(-1)  # [items, tokens, 1]
    return torch.where(tokens, values.float(), 0.0).sum(dim=1) / tokens.sum(dim=1).clamp(min=1)


def running_totals(scores: Tensor, mask: Tensor | None, before: Tensor | None) -> Tensor:
    """Sums of the scores over the tokens so far, and in the last column how many tokens these were.

    Args:
        scores: float32; [items, tokens, experts].
        mask: [items, tokens]; None = all are tokens.
        before: totals at the last token before these; [items, 1, experts + 1]; None = there is none.

    Returns:
        float32; [items, tokens, experts + 1]; the same whether a text comes at once or token by token.
    """
    tokens = scores.new_ones(*scores.shape[:2], 1) if mask is None else mask.unsqueeze(-1).to(scores.dtype)
    counted = torch.cat([torch.where(tokens.bool(), scores, 0.0), tokens], dim=-1)  # [items, tokens, experts + 1]
    totals = counted.cumsum(dim=1)
    return totals if before is None else totals + before


def running_mean(totals: Tensor) -> Tensor:
    """[items, tokens, experts + 1] → [items, tokens, experts]."""
    return totals[..., :-1] / totals[..., -1:].clamp(min=1)
