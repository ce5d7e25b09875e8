"""A tiny random seed of every family in the table, unified models made of it by hand, and inputs for both."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    CLIPTextConfig,
    CLIPVisionConfig,
    Dinov2Config,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    ViTConfig,
    XLMRobertaConfig,
)

from collegium.moe.architectures import ARCHITECTURES, architecture_of, ffn_parameter_names, layers_path
from collegium.moe.configuration import MoEConfig
from collegium.moe.layer import MoEFeedForward
from collegium.moe.low_rank import LowRankExpert
from collegium.moe.modeling import UNIFIED_MODELS, unified_config

LAYERS, DIM, WORDS = 3, 32, 60
SHAPE = {"hidden_size": DIM, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
TEXT = {**SHAPE, "vocab_size": WORDS, "max_position_embeddings": 64}
GROUPED = {**TEXT, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {**SHAPE, "image_size": 12, "patch_size": 4, "num_channels": 3}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "bert": BertConfig(**TEXT),
    "roberta": RobertaConfig(**TEXT, pad_token_id=1),
    "xlm-roberta": XLMRobertaConfig(**TEXT, pad_token_id=1),
    "clip_text_model": CLIPTextConfig(**TEXT, pad_token_id=0, bos_token_id=58, eos_token_id=59),
    "clip_vision_model": CLIPVisionConfig(**IMAGE),
    "vit": ViTConfig(**IMAGE, num_labels=5),
    "dinov2": Dinov2Config(
        **{name: value for name, value in IMAGE.items() if name != "intermediate_size"}, mlp_ratio=2
    ),
    "llama": LlamaConfig(**GROUPED, tie_word_embeddings=True, mlp_bias=True, rope_parameters=LLAMA3),
    "mistral": MistralConfig(**GROUPED, sliding_window=6),
    "qwen2": Qwen2Config(**GROUPED, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**GROUPED, head_dim=8),
    "gemma": GemmaConfig(**GROUPED, head_dim=8),
    "gemma2": Gemma2Config(**GROUPED, head_dim=8, sliding_window=6),
    "gemma3_text": Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=6, sliding_window_pattern=2),
    "olmo2": Olmo2Config(**GROUPED),
}
SEED_CLASSES = {seed.config_class.model_type: [] for seed in UNIFIED_MODELS}
for _seed in UNIFIED_MODELS:
    SEED_CLASSES[_seed.config_class.model_type].append(_seed)

EVERY_CLASS = [(family, seed.__name__) for family, classes in SEED_CLASSES.items() for seed in classes]
FAMILIES = list(SEED_CLASSES)
DECODERS = [family for family in FAMILIES if ARCHITECTURES[family].kind == "decoder"]
TEXTS = [family for family in FAMILIES if ARCHITECTURES[family].kind != "vision"]


def tiny_seed(family: str, class_name: str | None = None) -> Any:
    """A seed with random weights everywhere (biases and norms too); a decoder has its head unless another is named."""
    classes = {seed.__name__: seed for seed in SEED_CLASSES[family]}
    head = next((name for name in classes if name.endswith("ForCausalLM")), next(iter(classes)))
    torch.manual_seed(0)
    model = classes[class_name or head](type(CONFIGS[family])(**CONFIGS[family].to_dict()))
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # what tokens have in common must not decide for all of them
            parameter.add_((0.6 if "embed" in name else 0.15) * torch.randn(parameter.shape))
    return model.eval()


def tiny_unified(
    seed: Any, num_owners: int = 3, noise: float = 0.0, steepness: float = 1.0, random_seed: int = 0, **options: object
) -> Any:
    """A unified model whose experts are the seed's FFN plus `noise`, with random routers.

    With `expert_ranks`, low-rank experts have a random A, and a B of `noise`.
    """
    architecture = architecture_of(seed.config.model_type)
    names = [f"owner-{index}" for index in range(num_owners)]
    model = UNIFIED_MODELS[type(seed)](unified_config(seed.config, expert_names=names, **options))
    model.load_state_dict(seed.state_dict(), strict=False)
    generator = torch.Generator().manual_seed(random_seed)
    own, state = seed.state_dict(), model.state_dict()
    with torch.no_grad():
        for layer in moe_layers(model):
            moe = f"{layers_path(model, architecture)}.{layer.layer}.{architecture.ffn}"
            prefix = f"{moe}.experts"
            for expert in layer.experts:
                for name, factor in expert.named_parameters() if isinstance(expert, LowRankExpert) else ():
                    scale = noise if name.endswith("_B") else 1.0
                    factor.copy_(scale * torch.randn(factor.shape, generator=generator))
            for neutral, name in ffn_parameter_names(architecture, seed, layer.layer).items():
                matrix = neutral.split(".", 2)[2]
                if layer.base is not None:
                    state[f"{moe}.base.{matrix}"].copy_(own[name])
                for index, expert in enumerate(layer.experts):
                    if isinstance(expert, LowRankExpert):
                        continue
                    tensor = own[name]
                    if index < num_owners:
                        tensor = tensor + noise * torch.randn(tensor.shape, generator=generator)
                    state[f"{prefix}.{index}.{matrix}"].copy_(tensor)
        for router in model.routers.values():
            router.weight.copy_(steepness * torch.randn(router.weight.shape, generator=generator))
            router.centre.copy_(0.1 * torch.randn(router.centre.shape, generator=generator))
            router.context_weight.fill_(0.5)
    return model.eval()


def materialised(model: Any, seed: Any) -> Any:
    """The same model with full experts alone: W + B A."""
    options = {name: getattr(model.config, name) for name in MoEConfig.__dataclass_fields__ if name != "expert_ranks"}
    other = UNIFIED_MODELS[type(seed)](unified_config(seed.config, **options)).to(next(model.parameters()).dtype)
    other.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        for mine, theirs in zip(moe_layers(model), moe_layers(other), strict=True):
            if mine.router is not None:
                theirs.router.load_state_dict(mine.router.state_dict())
            for expert, full in zip(mine.experts, theirs.experts, strict=True):
                low_rank = isinstance(expert, LowRankExpert)
                full.load_state_dict((mine.base if low_rank else expert).state_dict())
                factors = dict(expert.named_parameters()) if low_rank else {}
                for name, factor in factors.items():
                    if name.endswith("_A"):
                        matrix = name.removesuffix("_A")
                        full.get_submodule(matrix).weight.add_(factors[f"{matrix}_B"] @ factor)
    return other.eval()


def moe_layers(model: nn.Module) -> list[MoEFeedForward]:
    return [module for module in model.modules() if isinstance(module, MoEFeedForward)]


def tiny_inputs(family: str, lengths: list[int], side: str = "right", width: int | None = None) -> dict[str, Tensor]:
    """Random texts of given lengths, the same whatever the padding and its side; or that many images."""
    if ARCHITECTURES[family].kind == "vision":
        images = [torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(row)) for row in range(len(lengths))]
        return {"pixel_values": torch.stack(images)}
    width = width or max(lengths)
    ids = torch.full((len(lengths), width), CONFIGS[family].pad_token_id or 0)
    mask = torch.zeros((len(lengths), width), dtype=torch.long)
    for row, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(1000 * row + length)
        part = slice(0, length) if side == "right" else slice(width - length, width)
        ids[row, part] = torch.randint(4, WORDS - 2, (length,), generator=generator)
        mask[row, part] = 1
    return {"input_ids": ids, "attention_mask": mask}


def answer(output: Any) -> Tensor:
    """Logits where there is a head, hidden states elsewhere."""
    return output.last_hidden_state if output.get("logits") is None else output.logits
