"""Unified models as Hugging Face classes: two or three lines for each architecture, and their registration.

A folder written by one of them loads with `AutoModel…` where this package is installed, and with
`trust_remote_code=True` where it is not: transformers copies this file and its neighbours into the folder.
"""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    BertConfig,
    BertModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
    Dinov2Config,
    Dinov2Model,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma2Model,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma3TextModel,
    GemmaConfig,
    GemmaForCausalLM,
    GemmaModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
    MistralModel,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo2Model,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    RobertaConfig,
    RobertaModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from .architectures import architecture_of
from .configuration import DecoderMoEConfig, MoEConfig
from .mixin import MoEMixin, MoEOutput  # noqa: F401

NOT_THE_SEEDS = (
    "model_type",
    "transformers_version",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "architectures",
    "auto_map",
)


@strict
class CollegiumBertConfig(MoEConfig, BertConfig):
    model_type = "collegium-bert"
    seed_model_type: str = "bert"


class CollegiumBertModel(MoEMixin, BertModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumBertConfig


@strict
class CollegiumRobertaConfig(MoEConfig, RobertaConfig):
    model_type = "collegium-roberta"
    seed_model_type: str = "roberta"


class CollegiumRobertaModel(MoEMixin, RobertaModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumRobertaConfig


@strict
class CollegiumXLMRobertaConfig(MoEConfig, XLMRobertaConfig):
    model_type = "collegium-xlm-roberta"
    seed_model_type: str = "xlm-roberta"


class CollegiumXLMRobertaModel(MoEMixin, XLMRobertaModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumXLMRobertaConfig


@strict
class CollegiumCLIPTextConfig(MoEConfig, CLIPTextConfig):
    model_type = "collegium-clip_text_model"
    seed_model_type: str = "clip_text_model"


class CollegiumCLIPTextModel(MoEMixin, CLIPTextModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumCLIPTextConfig


@strict
class CollegiumCLIPVisionConfig(MoEConfig, CLIPVisionConfig):
    model_type = "collegium-clip_vision_model"
    seed_model_type: str = "clip_vision_model"


class CollegiumCLIPVisionModel(MoEMixin, CLIPVisionModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumCLIPVisionConfig


class CollegiumCLIPVisionModelWithProjection(MoEMixin, CLIPVisionModelWithProjection):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumCLIPVisionConfig


@strict
class CollegiumViTConfig(MoEConfig, ViTConfig):
    model_type = "collegium-vit"
    seed_model_type: str = "vit"


class CollegiumViTModel(MoEMixin, ViTModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumViTConfig


class CollegiumViTForImageClassification(MoEMixin, ViTForImageClassification):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumViTConfig


@strict
class CollegiumDinov2Config(MoEConfig, Dinov2Config):
    model_type = "collegium-dinov2"
    seed_model_type: str = "dinov2"


class CollegiumDinov2Model(MoEMixin, Dinov2Model):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumDinov2Config


@strict
class CollegiumLlamaConfig(DecoderMoEConfig, LlamaConfig):
    model_type = "collegium-llama"
    seed_model_type: str = "llama"


class CollegiumLlamaModel(MoEMixin, LlamaModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumLlamaConfig


class CollegiumLlamaForCausalLM(MoEMixin, LlamaForCausalLM):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumLlamaConfig


@strict
class CollegiumMistralConfig(DecoderMoEConfig, MistralConfig):
    model_type = "collegium-mistral"
    seed_model_type: str = "mistral"


class CollegiumMistralModel(MoEMixin, MistralModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumMistralConfig


class CollegiumMistralForCausalLM(MoEMixin, MistralForCausalLM):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumMistralConfig


@strict
class CollegiumQwen2Config(DecoderMoEConfig, Qwen2Config):
    model_type = "collegium-qwen2"
    seed_model_type: str = "qwen2"


class CollegiumQwen2Model(MoEMixin, Qwen2Model):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumQwen2Config


class CollegiumQwen2ForCausalLM(MoEMixin, Qwen2ForCausalLM):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumQwen2Config


@strict
class CollegiumQwen3Config(DecoderMoEConfig, Qwen3Config):
    model_type = "collegium-qwen3"
    seed_model_type: str = "qwen3"


class CollegiumQwen3Model(MoEMixin, Qwen3Model):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumQwen3Config


class CollegiumQwen3ForCausalLM(MoEMixin, Qwen3ForCausalLM):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumQwen3Config


@strict
class CollegiumGemmaConfig(DecoderMoEConfig, GemmaConfig):
    model_type = "collegium-gemma"
    seed_model_type: str = "gemma"


class CollegiumGemmaModel(MoEMixin, GemmaModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumGemmaConfig


class CollegiumGemmaForCausalLM(MoEMixin, GemmaForCausalLM):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumGemmaConfig


@strict
class CollegiumGemma2Config(DecoderMoEConfig, Gemma2Config):
    model_type = "collegium-gemma2"
    seed_model_type: str = "gemma2"


class CollegiumGemma2Model(MoEMixin, Gemma2Model):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumGemma2Config


class CollegiumGemma2ForCausalLM(MoEMixin, Gemma2ForCausalLM):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumGemma2Config


@strict
class CollegiumGemma3TextConfig(DecoderMoEConfig, Gemma3TextConfig):
    model_type = "collegium-gemma3_text"
    seed_model_type: str = "gemma3_text"


class CollegiumGemma3TextModel(MoEMixin, Gemma3TextModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumGemma3TextConfig


class CollegiumGemma3ForCausalLM(MoEMixin, Gemma3ForCausalLM):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumGemma3TextConfig


@strict
class CollegiumOlmo2Config(DecoderMoEConfig, Olmo2Config):
    model_type = "collegium-olmo2"
    seed_model_type: str = "olmo2"


class CollegiumOlmo2Model(MoEMixin, Olmo2Model):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumOlmo2Config


class CollegiumOlmo2ForCausalLM(MoEMixin, Olmo2ForCausalLM):  # pyright: ignore[reportIncompatibleMethodOverride]
    config_class = CollegiumOlmo2Config


# Seed class → its unified class.
UNIFIED_MODELS: dict[type, Any] = {
    BertModel: CollegiumBertModel,
    RobertaModel: CollegiumRobertaModel,
    XLMRobertaModel: CollegiumXLMRobertaModel,
    CLIPTextModel: CollegiumCLIPTextModel,
    CLIPVisionModel: CollegiumCLIPVisionModel,
    CLIPVisionModelWithProjection: CollegiumCLIPVisionModelWithProjection,
    ViTModel: CollegiumViTModel,
    ViTForImageClassification: CollegiumViTForImageClassification,
    Dinov2Model: CollegiumDinov2Model,
    LlamaModel: CollegiumLlamaModel,
    LlamaForCausalLM: CollegiumLlamaForCausalLM,
    MistralModel: CollegiumMistralModel,
    MistralForCausalLM: CollegiumMistralForCausalLM,
    Qwen2Model: CollegiumQwen2Model,
    Qwen2ForCausalLM: CollegiumQwen2ForCausalLM,
    Qwen3Model: CollegiumQwen3Model,
    Qwen3ForCausalLM: CollegiumQwen3ForCausalLM,
    GemmaModel: CollegiumGemmaModel,
    GemmaForCausalLM: CollegiumGemmaForCausalLM,
    Gemma2Model: CollegiumGemma2Model,
    Gemma2ForCausalLM: CollegiumGemma2ForCausalLM,
    Gemma3TextModel: CollegiumGemma3TextModel,
    Gemma3ForCausalLM: CollegiumGemma3ForCausalLM,
    Olmo2Model: CollegiumOlmo2Model,
    Olmo2ForCausalLM: CollegiumOlmo2ForCausalLM,
}
# Model type of the seed → configuration class and the model class that a seed is loaded as (with a decoder's head; of
# the vision tower of a whole CLIP, see `UNIFIED_MODELS`).
UNIFIED_CLASSES: dict[str, tuple[Any, Any]] = {
    unified.config_class.seed_model_type: (unified.config_class, unified)
    for seed, unified in UNIFIED_MODELS.items()
    if not seed.__name__.endswith(("ForImageClassification", "WithProjection"))
}

AUTO_CLASSES = {
    "ForCausalLM": (AutoModelForCausalLM, "AutoModelForCausalLM"),
    "ForImageClassification": (AutoModelForImageClassification, "AutoModelForImageClassification"),
    "Model": (AutoModel, "AutoModel"),
    "WithProjection": (AutoModel, "AutoModel"),
}


def unified_config(seed: PreTrainedConfig, **moe: Any) -> Any:
    """The configuration of a unified model: everything of the seed's, and the fields of `MoEConfig`.

    Raises:
        ValueError: the seed's family is not supported.
    """
    architecture_of(seed.model_type)
    config_class, _ = UNIFIED_CLASSES[seed.model_type]
    own = {name: value for name, value in seed.to_dict().items() if name not in NOT_THE_SEEDS}
    return config_class(**{**own, **moe})


for _config, _ in UNIFIED_CLASSES.values():
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    _config.register_for_auto_class()
_registered: dict[tuple[Any, Any], tuple[Any, ...]] = {}
for _model in UNIFIED_MODELS.values():
    _auto, _name = next(auto for suffix, auto in AUTO_CLASSES.items() if _model.__name__.endswith(suffix))
    _model.register_for_auto_class(_name)
    _registered[_auto, _model.config_class] = (*_registered.get((_auto, _model.config_class), ()), _model)
for (_auto, _config), (_first, *_others) in _registered.items():
    # Of several classes, `architectures` in the configuration names one.
    _auto.register(_config, (_first, *_others) if _others else _first, exist_ok=True)
