"""What a unified model's configuration adds to its seed's."""

from dataclasses import dataclass
from typing import Literal


@dataclass(repr=False, eq=False, kw_only=True)
class MoEConfig:
    """Stands before the seed's configuration class in the bases.

    Attributes:
        seed_model_type: row of `ARCHITECTURES`.
        expert_names: owners, in the order of the experts.
        decide: `once` (layers below `decide_layer` keep the seed's FFN alone) or `every-layer`.
        context: `token`, `sequence` (not in decoders), `causal` (decoders alone) or `seed`.
        warmup_tokens: with `context: causal`, tokens with fewer than so many up to themselves take the seed's FFN: a
            mean over a few tokens tells little.
        fallback: the seed's own FFN can be picked, as the last expert.
        expert_ranks: rank of each owner's expert as a change of the seed's FFN, which is then kept once, as `base`;
            None for an expert with full matrices. None instead of the list = all are full, and there is no base.
    """

    seed_model_type: str = ""
    expert_names: list[str] | None = None
    decide: Literal["once", "every-layer"] = "once"
    decide_layer: int = 1
    context: Literal["token", "sequence", "causal", "seed"] = "sequence"
    experts_per_token: int = 1
    weighting: Literal["straight-through", "renormalised", "softmax"] = "straight-through"
    learn_context_weight: bool = False
    warmup_tokens: int = 0
    fallback: bool = False
    expert_ranks: list[int | None] | None = None

    @property
    def candidates(self) -> list[str]:
        """What the router scores, in the order of its rows: the owners, and `seed` for the fallback."""
        return [*(self.expert_names or []), *(["seed"] if self.fallback else [])]

    @property
    def choices(self) -> list[str]:
        """What a token may run through, in the order of the experts: a warm-up takes the seed without a row for it."""
        return [*(self.expert_names or []), *(["seed"] if self.fallback or self.warmup_tokens > 0 else [])]

    @property
    def keeps_seed_ffn(self) -> bool:
        return self.fallback or self.context == "seed" or self.warmup_tokens > 0

    @property
    def first_moe_layer(self) -> int:
        return self.decide_layer if self.decide == "once" else 0


@dataclass(repr=False, eq=False, kw_only=True)
class DecoderMoEConfig(MoEConfig):
    """Of a causal decoder: no token may see those after it."""

    context: Literal["token", "sequence", "causal", "seed"] = "causal"
