"""Unified models as Hugging Face classes: a mixin, and two lines for each architecture.

The surgery happens in `__init__`, so `from_pretrained`, `save_pretrained` and `generate` are transformers' own. On
disk there is one tensor for each expert and matrix; the router is float32 whatever the model's dtype.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, BertConfig, BertModel
from transformers.utils.generic import ModelOutput

from .architectures import architecture_of, layers_of
from .context import RoutingState, routing_state
from .layer import MoEFeedForward
from .router import Router


@dataclass
class MoEOutput(ModelOutput):
    """Output of a unified encoder.

    Attributes:
        last_hidden_state: [items, tokens, dim].
        pooler_output: the seed's pooler, where it has one.
        routings: layer → Routing, with `output_routing=True`.
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple | None = None
    attentions: tuple | None = None
    routings: dict | None = None


@strict
class CollegiumBertConfig(BertConfig):
    """BertConfig and what the MoE layers need.

    Attributes:
        seed_model_type: row of `ARCHITECTURES`.
        expert_names: owners, in the order of the experts.
        decide: `once` (layers below `decide_layer` keep the seed's FFN alone) or `every-layer`.
        context: `token`, `sequence` or `seed`.
        fallback: the seed's own FFN can be picked, as the last expert.
    """

    model_type = "collegium-bert"

    seed_model_type: str = "bert"
    expert_names: list[str] | None = None
    decide: Literal["once", "every-layer"] = "once"
    decide_layer: int = 1
    context: Literal["token", "sequence", "seed"] = "sequence"
    experts_per_token: int = 1
    weighting: Literal["straight-through", "renormalised", "softmax"] = "straight-through"
    learn_context_weight: bool = False
    fallback: bool = False

    @property
    def keeps_seed_ffn(self) -> bool:
        return self.fallback or self.context == "seed"

    @property
    def first_moe_layer(self) -> int:
        return self.decide_layer if self.decide == "once" else 0


class MoEMixin:
    """Turns the FFNs of a seed class into MoE layers. Stands before the seed's class in the bases."""

    _keep_in_fp32_modules_strict = ("router",)
    supports_gradient_checkpointing = False  # a recomputed layer would miss the decision of an earlier one

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)  # pyright: ignore[reportCallIssue]
        architecture = architecture_of(config.seed_model_type)
        for field, only in architecture.refused.items():
            if getattr(config, field, only) != only:
                raise ValueError(
                    f"{field} = {getattr(config, field)!r} is not supported in a unified model, only {only!r}"
                )
        layers = layers_of(self, architecture)  # pyright: ignore[reportArgumentType]
        if not 0 <= config.first_moe_layer < len(layers):
            raise ValueError(f"decide_layer = {config.decide_layer}, but the seed's layers are 0 to {len(layers) - 1}")
        num_owners = len(config.expert_names or [])
        for index in range(config.first_moe_layer, len(layers)):
            decides = config.decide == "every-layer" or index == config.decide_layer
            router = Router(
                config.hidden_size,
                num_owners + config.fallback,
                config.experts_per_token,
                config.weighting,
                config.learn_context_weight,
            )
            moe = MoEFeedForward(
                index,
                config.hidden_size,
                config.intermediate_size,
                getattr(config, architecture.activation),
                num_owners + config.keeps_seed_ffn,
                config.context,
                router if decides else None,
                share_decision=config.decide == "once",
            )
            layers[index].set_submodule(architecture.ffn, moe)
            layers[index].set_submodule(architecture.identity, nn.Identity())
        self.post_init()  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def routers(self) -> dict[int, Router]:
        """Layer → router, for the layers that have one."""
        return {m.layer: m.router for m in self.modules() if isinstance(m, MoEFeedForward) and m.router is not None}  # pyright: ignore[reportAttributeAccessIssue]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_routing: bool = False,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> MoEOutput | tuple:
        """The seed's forward, with experts. `attention_mask` may be padded on either side."""
        given = input_ids if input_ids is not None else inputs_embeds
        if given is None:
            raise ValueError("give input_ids or inputs_embeds")
        mask = (
            torch.ones(given.shape[:2], dtype=torch.long, device=given.device)
            if attention_mask is None
            else attention_mask
        )
        if mask.shape != given.shape[:2]:
            raise ValueError(f"attention_mask has shape {tuple(mask.shape)}, expected {tuple(given.shape[:2])}")
        if position_ids is None:
            position_ids = (mask.long().cumsum(dim=1) - 1).clamp(min=0)  # the same on either side of the padding
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "attention_mask": mask, **kwargs}
        inputs.update(position_ids=position_ids, return_dict=True)
        seed_means: dict[int, Tensor] = {}
        if self.config.context == "seed":  # pyright: ignore[reportAttributeAccessIssue]
            with torch.no_grad(), routing_state(RoutingState(mask, seed_pass=True)) as state:
                super().forward(**inputs)  # pyright: ignore[reportAttributeAccessIssue]
            seed_means = state.seed_means
        with routing_state(RoutingState(mask, seed_means=seed_means)) as state:
            output = super().forward(**inputs)  # pyright: ignore[reportAttributeAccessIssue]
        result = MoEOutput(
            last_hidden_state=output.last_hidden_state,
            pooler_output=output.pooler_output,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
            routings=state.routings if output_routing else None,
        )
        if return_dict is None:
            return_dict = self.config.return_dict  # pyright: ignore[reportAttributeAccessIssue]
        return result if return_dict else result.to_tuple()


class CollegiumBertModel(MoEMixin, BertModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumBertConfig


UNIFIED_CLASSES = {"bert": (CollegiumBertConfig, CollegiumBertModel)}

for _config, _model in UNIFIED_CLASSES.values():
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)
    _config.register_for_auto_class()
    _model.register_for_auto_class("AutoModel")
