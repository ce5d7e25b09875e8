"""Fine-tunes for the tests of merging: copies of a tiny model with other feed-forward weights, or with a fault."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

Tensors = dict[str, Tensor]
FFN = ("intermediate.dense", "output.dense", "mlp.")


def make_tiny_llama(folder: Path, tokenizer: Path, tied: bool = True, rows: int = 64) -> Path:
    """A random Llama of 2 layers whose embedding has more rows than the tokenizer (of another folder) has tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)
    return folder


def finetune(
    seed: Path,
    folder: Path,
    edit: Callable[[Tensors], object] = lambda tensors: None,
    config: dict[str, object] | None = None,
    random_seed: int = 0,
) -> Path:
    """A copy of `seed` with noise in its FFNs; `edit` changes the tensors by name, `config` the configuration."""
    shutil.copytree(seed, folder)
    generator = torch.Generator().manual_seed(random_seed)
    tensors = load_file(folder / "model.safetensors")
    for name in sorted(tensors):
        if any(part in name for part in FFN) and "attention" not in name:
            tensors[name] = tensors[name] + 0.1 * torch.randn(tensors[name].shape, generator=generator)
    edit(tensors)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    if config:
        values = json.loads((folder / "config.json").read_text()) | config
        (folder / "config.json").write_text(json.dumps(values))
    return folder


def into_shards(folder: Path, count: int = 3) -> Path:
    """Split `model.safetensors` of a folder into shards with an index, round-robin."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    listed = {}
    for index in range(count):
        name = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[index::count]}
        save_file(part, folder / name, {"format": "pt"})
        listed |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    return folder
