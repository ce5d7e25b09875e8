"""What a router sees: the token, or the sequence around it (MetaMoE §3.3: z̃_t = (1−λ) z_t + λ z_x).

The published code averages z_x over the batch (vision) and over padding; then an answer depends on its batch-mates.
Here z_x is a masked mean of one sequence.

The state of one forward pass travels in a context variable, so that the layers need no extra argument, a copied
model keeps no old state, and two threads do not disturb each other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .router import Routing


@dataclass
class RoutingState:
    """What the MoE layers of one forward pass share.

    Attributes:
        mask: 1 for a token, 0 for padding; [items, tokens].
        seed_pass: True while the frozen seed runs ahead to supply its means (`context: seed`).
        seed_means: layer → mean FFN input of the seed; [items, dim].
        decision: the routing that later layers reuse (`decide: once`).
        routings: layer → routing, for those who asked for the router's outputs.
    """

    mask: Tensor
    seed_pass: bool = False
    seed_means: dict[int, Tensor] = field(default_factory=dict)
    decision: Routing | None = None
    routings: dict[int, Routing] = field(default_factory=dict)


_STATE: ContextVar[RoutingState | None] = ContextVar("collegium_routing_state", default=None)


@contextmanager
def routing_state(state: RoutingState) -> Iterator[RoutingState]:
    """Make `state` the one that the layers see inside the block."""
    token = _STATE.set(state)
    try:
        yield state
    finally:
        _STATE.reset(token)


def current_state() -> RoutingState:
    """The state of the running forward pass.

    Raises:
        RuntimeError: a layer was called outside the model's forward, where no padding mask is known.
    """
    state = _STATE.get()
    if state is None:
        raise RuntimeError("a MoE layer was called outside its model; call the model, which knows the padding mask")
    return state


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens of each sequence, in float32; [items, tokens, dim] → [items, dim]."""
    weights = mask.to(torch.float32).unsqueeze(-1)  # [items, tokens, 1]
    return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
