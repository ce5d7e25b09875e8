"""Routing state that outlives a forward pass: it stands in the key-value cache, behind the layers of the attention.

So beam search, cropping, repeating and copying a cache take it along by the cache's own methods. It costs E+1 float32
numbers a token and routed layer with `context: causal`, and `dim` numbers a sequence and routed layer with `context:
seed`; keys and values of one layer are hundreds of numbers a token.

Subclass of transformers' `DummyLayer` (an entry of the cache that no attention uses), which keeps offloading and mask
making away from it. A StaticCache, whose tensors never change their size, is refused by the model.
"""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DummyLayer


class RoutingMemory(DummyLayer):
    """What one routed layer remembers; `state` is [items, …]. Cropping tokens leaves it as it is (`context: seed`)."""

    state: Tensor | None = None

    def reset(self) -> None:
        self.state = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._select(lambda state: state.index_select(0, beam_idx.to(state.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select(lambda state: state.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select(lambda state: state[indices])

    def _select(self, change: Any) -> None:
        if self.state is not None:
            self.state = change(self.state)


class TokenMemory(RoutingMemory):
    """A memory with one entry for each token of the cache; [items, tokens, …] (`context: causal`)."""

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0:
            self._select(lambda state: state[:, : -abs(tokens_to_remove)])


def memory_of(cache: Cache, num_layers: int, slot: int, kind: type[RoutingMemory]) -> Any:
    """The memory of a routed layer in a cache; an empty one where there is none yet.

    Args:
        num_layers: layers of the model, which come first in the cache.
        slot: which of the routed layers, from 0.
    """
    while len(cache.layers) < num_layers:  # a cache made without a configuration grows as it is used
        cache.layers.append(cache.layer_class_to_replicate())  # pyright: ignore[reportOptionalCall]
    while len(cache.layers) <= num_layers + slot:
        cache.layers.append(kind())
    return cache.layers[num_layers + slot]


def check_past(found: int, past: int) -> None:
    """Refuse a cache whose routing state does not reach as far as its keys.

    Raises:
        ValueError: another model filled the cache.
    """
    if found != past:
        raise ValueError(
            f"the cache holds {past} tokens, but routing state for {found}: another model filled it; give the model "
            "the whole text, or a cache that it filled itself"
        )
