"""Settings of the router: its closed form, where it decides, what it sees, and the presets of other methods."""

from typing import Literal

from pydantic import Field, model_validator

from collegium.core.settings import Settings

CAUSAL_WARMUP = 8  # tokens; METHODS §6: on prefixes of 2, 4 and 8 tokens 52, 85 and 87 % were routed right
PAPER_ROUTER = {
    "init": "raw",
    "vectors": "tuned",
    "decide": "every-layer",
    "context": "seed",
    "context_weight": 1.0,
    "learn_context_weight": True,
    "weighting": "renormalised",
    "temperature": 1.0,
}

# What the routers of Mixtral and its like can do: rows alone, on the token alone, in every layer.
EXPORTABLE_ROUTER = {
    "init": "normalised",
    "decide": "every-layer",
    "context": "token",
    "context_weight": 0.0,
    "weighting": "straight-through",
}

# FlexOlmo's: rows from the private domain alone, the public expert beside them, and a learnt bias that favours it.
FLEXOLMO_ROUTER = {
    "init": "normalised",
    "vectors": "private",
    "decide": "every-layer",
    "context": "token",
    "context_weight": 0.0,
    "fallback": True,
    "owner_bias": "non-positive",
}
PRESETS = {"paper": PAPER_ROUTER, "exportable": EXPORTABLE_ROUTER, "flexolmo": FLEXOLMO_ROUTER}


class RouterSettings(Settings):
    preset: Literal["default", "paper", "exportable", "flexolmo"] = Field(
        default="default",
        description="paper = the published router; exportable = one that `export` writes exactly (a routing vector of "
        "every layer leaves each owner); flexolmo = FlexOlmo's; other keys still win over the preset",
    )
    init: Literal["raw", "normalised", "lda", "whitened"] = Field(
        default="whitened",
        description="how the closed form is made of the routing vectors: raw = as published; normalised = rows of "
        "length 1; lda = linear discriminant with the pool's covariance; whitened = cosine where the pool is white",
    )
    vectors: Literal["seed", "private", "tuned"] = Field(
        default="seed",
        description="seed = mean over private examples and proxies in the seed's pass; private = without the "
        "proxies (routes better, hides less); tuned = the published choice, in the tuned expert's pass",
    )
    decide: Literal["once", "every-layer"] = Field(
        default="once", description="once = at decide_layer, reused above, the seed's FFNs below; or in every layer"
    )
    decide_layer: int = Field(default=1, ge=0, description="with decide: once, the layer of the decision, from 0")
    context: Literal["token", "sequence", "causal", "seed"] = Field(
        default="sequence",
        description="what the router sees beside the token: nothing; the mean over the sequence (not in decoders); the "
        "mean over the tokens so far (decoders alone, and their default); the mean in an extra pass of the frozen "
        "seed, as published",
    )
    context_weight: float = Field(default=1.0, ge=0, le=1, description="λ: 0 = the token alone, 1 = the context alone")
    learn_context_weight: bool = Field(default=False, description="let joint tuning move λ")
    shrinkage: float = Field(default=3.0, gt=0, description="s: Σ + s·tr(Σ)/d·I")
    temperature: Literal["auto"] | float = Field(default="auto", description="auto = fitted on held-out proxies")
    weighting: Literal["straight-through", "renormalised", "softmax"] = Field(
        default="straight-through",
        description="straight-through: chosen weights sum to 1, gradients reach the router; renormalised: the "
        "published one, without gradient at top-1; softmax: Switch, the output is scaled by the probability",
    )
    experts_per_token: int = Field(default=1, ge=1, description="k: experts that each token runs through")
    warmup_tokens: int | None = Field(
        default=None,
        ge=0,
        description="with context: causal, tokens with fewer than so many up to themselves take the seed's FFN, as a "
        f"mean over a few tokens tells little; null = {CAUSAL_WARMUP} with context: causal, 0 otherwise",
    )
    fallback: bool = Field(default=False, description="keep the seed's own FFN as one more expert")
    fallback_bias: float = Field(default=0.0, description="added to the fallback's logit 0")
    owner_bias: Literal["none", "non-positive"] = Field(
        default="none",
        description="non-positive = a bias for each owner's expert, at most 0, learnt from proxies and other pool "
        "items; needs the fallback, which it favours",
    )

    @property
    def warmup(self) -> int:
        """Tokens that `warmup_tokens` stands for, once the context is known."""
        if self.warmup_tokens is None:
            return CAUSAL_WARMUP if self.context == "causal" else 0
        return self.warmup_tokens

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("preset") in PRESETS:
            return {**PRESETS[values["preset"]], **values}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "RouterSettings":
        if isinstance(self.temperature, float) and self.temperature <= 0:
            raise ValueError("temperature must be above 0")
        if self.owner_bias != "none" and not self.fallback:
            raise ValueError(f"owner_bias: {self.owner_bias} favours the seed's own FFN; set fallback: true")
        if self.context == "seed" and self.decide == "once":
            raise ValueError("context: seed is an extra pass for decide: every-layer; with decide: once use sequence")
        if self.warmup_tokens and self.context != "causal" and "context" in self.model_fields_set:
            raise ValueError(f"warmup_tokens: {self.warmup_tokens} is for context: causal, not {self.context}")
        return self
