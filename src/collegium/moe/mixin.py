"""Turns a seed class of transformers into a Mixture-of-Experts class: `class Unified(MoEMixin, SeedClass)`.

The surgery happens in `__init__`, so `from_pretrained`, `save_pretrained` and `generate` are transformers' own. On
disk there is one tensor for each expert and matrix; the router is float32 whatever the model's dtype.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import DynamicCache, StaticLayer
from transformers.utils.generic import ModelOutput

from .architectures import CONTEXTS, Architecture, architecture_of, first_position, layers_of
from .context import CheckpointWithState, RoutingState, current_state, in_pass, open_state, routing_state
from .experts import FeedForward
from .layer import MoEFeedForward
from .low_rank import LowRankExpert
from .router import Router


@dataclass
class MoEOutput(ModelOutput):
    """Output of a unified model: the fields of its seed's output (the others are None), and the routings.

    Attributes:
        loss: where the seed's class has a head and `labels` are given.
        logits: of the seed's head; [items, tokens, vocabulary].
        last_hidden_state: of a class without a head; [items, tokens, dim].
        pooler_output: the seed's pooler, where it has one.
        image_embeds: of a class with a projection into the space that texts share; [items, projected].
        cache: keys, values and routing state, for the next tokens.
        routings: layer → Routing, with `output_routing=True`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    image_embeds: Tensor | None = None
    cache: Any = None
    hidden_states: tuple | None = None
    attentions: tuple | None = None
    routings: dict | None = None


class MoEMixin:
    """Turns the FFNs of a seed class into MoE layers. Stands before the seed's class in the bases."""

    _keep_in_fp32_modules_strict = ("router",)

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if MoEMixin in cls.__bases__:
            cls.forward = _with_experts(cls.forward)  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)  # pyright: ignore[reportCallIssue]
        architecture = architecture_of(config.seed_model_type)
        _check(config, architecture)
        layers = layers_of(self, architecture)  # pyright: ignore[reportArgumentType]
        if not 0 <= config.first_moe_layer < len(layers):
            raise ValueError(f"decide_layer = {config.decide_layer}, but the seed's layers are 0 to {len(layers) - 1}")
        num_owners = len(config.expert_names or [])
        for index in range(config.first_moe_layer, len(layers)):
            up_proj: Any = layers[index].get_submodule(architecture.matrices["up_proj"])
            base, experts = _experts(config, architecture, up_proj)
            decides = config.decide == "every-layer" or index == config.decide_layer
            router = Router(
                up_proj.in_features,
                num_owners + config.fallback,
                config.experts_per_token,
                config.weighting,
                config.learn_context_weight,
            )
            moe = MoEFeedForward(
                index,
                index - config.first_moe_layer,
                len(layers),
                experts,
                config.context,
                router if decides else None,
                share_decision=config.decide == "once",
                warmup_tokens=config.warmup_tokens,
                base=base,
            )
            layers[index].set_submodule(architecture.ffn, moe)
            if architecture.identity:
                layers[index].set_submodule(architecture.identity, nn.Identity())
        body: Any = self.base_model  # pyright: ignore[reportAttributeAccessIssue]
        if body is not self:
            body.register_forward_pre_hook(_open_body, with_kwargs=True)
            body.register_forward_hook(_close_body, always_call=True)
        self.post_init()  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def routers(self) -> dict[int, Router]:
        """Layer → router, for the layers that have one."""
        return {m.layer: m.router for m in self.modules() if isinstance(m, MoEFeedForward) and m.router is not None}  # pyright: ignore[reportAttributeAccessIssue]

    def set_active_experts(self, names: Sequence[str] | None) -> None:
        """Let the routers pick from these experts alone, from the next pass on (the opt-out of FlexOlmo,
        arXiv:2507.07024): the others' scores are −inf, and the probabilities those of the rest.

        A choice of the moment: it is saved neither in the configuration nor with the weights, and the other experts
        stay in the model. Tokens of a warm-up take the seed's FFN whoever is active.

        Args:
            names: owners, and `seed` for the fallback; None = all.

        Raises:
            ValueError: a name that no expert has, or fewer experts than each token takes; nothing is changed.
        """
        known = self.config.candidates  # pyright: ignore[reportAttributeAccessIssue]
        inactive = None
        if names is not None:
            unknown = sorted(set(names) - set(known))
            if unknown:
                raise ValueError(f"no expert is named {', '.join(unknown)}; the experts are {', '.join(known)}")
            inactive = torch.tensor([name not in names for name in known])
            wanted, active = min(self.config.experts_per_token, len(known)), int((~inactive).sum())  # pyright: ignore[reportAttributeAccessIssue]
            if active < wanted:
                raise ValueError(f"{active} active experts, but each token takes {wanted}; name at least {wanted}")
        for router in self.modules():  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(router, Router):  # also those that PEFT keeps beside the first (modules_to_save)
                router.inactive = None if inactive is None else inactive.to(router.weight.device)

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Callable = checkpoint, **kwargs: Any
    ) -> None:
        # Reentrant checkpointing runs a layer without gradient first, and a decision reused above would have none.
        options = getattr(gradient_checkpointing_func, "keywords", {})
        if enable and options.get("use_reentrant") is not False:
            raise ValueError("gradient checkpointing of a unified model needs use_reentrant=False")
        remembering = CheckpointWithState(gradient_checkpointing_func)
        super()._set_gradient_checkpointing(enable, remembering, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]


def _experts(
    config: Any, architecture: Architecture, up_proj: nn.Linear
) -> tuple[FeedForward | None, list[FeedForward | LowRankExpert]]:
    """One layer's base, where it has one, and its experts: the owners', and the seed's where it is one of them."""

    def full() -> FeedForward:
        activation = getattr(config, architecture.activation)
        return FeedForward(dim, inner, activation, gated=architecture.gated, bias=up_proj.bias is not None)

    dim, inner = up_proj.in_features, up_proj.out_features
    if config.expert_ranks is None:
        return None, [full() for _ in range(len(config.expert_names or []) + config.keeps_seed_ffn)]
    shapes = {matrix: (dim, inner) if matrix == "down_proj" else (inner, dim) for matrix in architecture.matrices}
    ranks = [*config.expert_ranks, *([0] if config.keeps_seed_ffn else [])]
    return full(), [full() if rank is None else LowRankExpert(shapes, rank) for rank in ranks]


def _check(config: Any, architecture: Architecture) -> None:
    for field, only in architecture.refused.items():
        value = getattr(config, field, only)
        if (value or None) != (only or None):  # None, False and 0 all say no
            raise ValueError(f"{field} = {value!r} is not supported in a unified model, only {only!r}")
    allowed = CONTEXTS[architecture.kind]
    if config.context not in allowed:
        why = "a token may not see those after it" if architecture.kind == "decoder" else "its whole input is there"
        raise ValueError(
            f"context = {config.context!r} is not supported in {config.seed_model_type}, a model of kind "
            f"{architecture.kind}: {why}; use one of {', '.join(allowed)}"
        )
    ranks, names = config.expert_ranks, config.expert_names or []
    if ranks is not None and (len(ranks) != len(names) or any(rank is not None and rank < 0 for rank in ranks)):
        raise ValueError(f"expert_ranks = {ranks!r}, expected a rank or None for each of {', '.join(names)}")
    if config.warmup_tokens and config.context != "causal":
        raise ValueError(f"warmup_tokens = {config.warmup_tokens} needs context = 'causal', got {config.context!r}")


def _with_experts(seed_forward: Callable) -> Callable:
    """The seed's forward with experts.

    It takes two arguments more: `output_routing`, and, for `context: seed` in a decoder, `prompt_length`: the number
    of real tokens over which z_x is taken where no cache tells it (None = all that are given; [items] or one number).
    With a cache the prompt is what the first pass was given.
    """
    signature = inspect.signature(seed_forward)

    @functools.wraps(seed_forward)
    def forward(
        self: Any, *args: Any, output_routing: bool = False, prompt_length: Tensor | int | None = None, **kwargs: Any
    ) -> MoEOutput | tuple:
        inputs = _by_name(signature, self, args, kwargs)
        return_dict = inputs.pop("return_dict", None)
        state = _state(self, inputs, prompt_length)
        if self.config.context == "seed" and state.past == 0:
            state.seed_means = _seed_means(self, seed_forward, inputs, state)
        with routing_state(state):
            output = seed_forward(self, **inputs, return_dict=True)
        result = MoEOutput(**output, routings=state.routings if output_routing else None)
        if return_dict is None:
            return_dict = self.config.return_dict
        return result if return_dict else result.to_tuple()

    extra = [
        inspect.Parameter("output_routing", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool),
        inspect.Parameter("prompt_length", inspect.Parameter.KEYWORD_ONLY, default=None),
    ]
    own = list(signature.parameters.values())
    before = [one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD]
    forward.__signature__ = signature.replace(parameters=[*before, *extra, *own[len(before) :]])  # pyright: ignore[reportAttributeAccessIssue]
    return forward


def _open_body(body: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """Gives a body that is called without its head a state of its own, as TRL does to compute the loss in pieces."""
    if in_pass():
        return None
    forward = type(body).forward
    inputs = _by_name(inspect.signature(forward), body, args, kwargs)
    state = _state(body, inputs, inputs.pop("prompt_length", None))
    if body.config.context == "seed" and state.past == 0:
        state.seed_means = _seed_means(body, forward, inputs, state)
    state.body = body
    open_state(state)
    return (), inputs


def _close_body(body: Any, *_: Any) -> None:
    if in_pass() and current_state().body is body:
        open_state(None)


def _by_name(signature: inspect.Signature, model: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    inputs = dict(signature.bind(model, *args, **kwargs).arguments)
    inputs.pop("self")
    inputs.update(inputs.pop("kwargs", {}))
    return inputs


def _state(model: Any, inputs: dict[str, Any], prompt_length: Tensor | int | None) -> RoutingState:
    """The state of a pass; fills in positions and a cache where the caller gave none."""
    architecture = architecture_of(model.config.seed_model_type)
    if architecture.kind == "vision":
        if inputs.get("attention_mask") is not None:
            raise ValueError("attention_mask is not supported for images: every patch counts")
        return RoutingState(mask=None)
    given = inputs.get("input_ids")
    given = inputs.get("inputs_embeds") if given is None else given
    if given is None:
        raise ValueError("give input_ids or inputs_embeds")
    cache, past = None, 0
    if architecture.kind == "decoder":
        cache = _cache(model, inputs)
        past = 0 if cache is None else cache.get_seq_length()
    items, tokens = given.shape[:2]
    mask = inputs.get("attention_mask")
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.shape != (items, past + tokens):
            shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"attention_mask has shape {shape}, expected {(items, past + tokens)}")
        if inputs.get("position_ids") is None:  # the same on either side of the padding
            positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0) + first_position(model.config)
            inputs["position_ids"] = positions[:, past:]
        mask = mask[:, past:]
    return RoutingState(mask, _prompt(mask, given, past, prompt_length), cache, past)


def _cache(model: Any, inputs: dict[str, Any]) -> Any:
    """The cache of a decoder's pass, made here where the seed would make it: the layers need it for their memory."""
    old_name = inputs.pop("past_key_values", None)
    cache = inputs["cache"] = inputs.get("cache") if old_name is None else old_name
    replayed = getattr(model.base_model, "gradient_checkpointing", False) and model.training and torch.is_grad_enabled()
    wanted = model.config.use_cache if inputs.get("use_cache") is None else inputs["use_cache"]
    if replayed or (cache is None and not wanted):
        inputs.update(use_cache=False, cache=None)
        return None
    if cache is None:
        cache = inputs["cache"] = DynamicCache(config=model.config)
    if any(isinstance(layer, StaticLayer) for layer in cache.layers):
        raise ValueError("a static cache is not supported by a unified model; use the default (dynamic) one")
    return cache


def _prompt(mask: Tensor | None, given: Tensor, past: int, prompt_length: Tensor | int | None) -> Tensor | None:
    if prompt_length is None or past > 0:
        return mask
    items, tokens = given.shape[:2]
    real = torch.ones(items, tokens, dtype=torch.long, device=given.device) if mask is None else mask.long()
    lengths = torch.as_tensor(prompt_length, device=given.device).expand(items)
    if (real.sum(dim=1) < lengths).any():
        raise ValueError(
            f"prompt_length = {prompt_length}, but the first pass holds fewer tokens; give the whole prompt"
        )
    return real * (real.cumsum(dim=1) <= lengths.unsqueeze(1))


def _seed_means(model: Any, seed_forward: Callable, inputs: dict[str, Any], state: RoutingState) -> dict[int, Tensor]:
    """Mean FFN inputs of the seed, from an extra pass over the same inputs, without its head and without a cache."""
    body = {name: value for name, value in inputs.items() if name not in ("labels", "logits_to_keep")}
    if state.cache is not None or "cache" in body:
        body.update(cache=None, use_cache=False)
    with torch.no_grad(), routing_state(RoutingState(state.mask, state.prompt, seed_pass=True)) as ahead:
        if model.base_model is model:
            seed_forward(model, **body, return_dict=True)
        else:
            model.base_model(**body, return_dict=True)
    return ahead.seed_means
