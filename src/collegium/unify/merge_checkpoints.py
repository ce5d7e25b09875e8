"""`collegium merge`: fine-tunes that already exist, whole checkpoints or LoRA folders, become one MoE folder.

No model is loaded: the headers say what goes where and the bytes are copied (`byte_merge`). The folder loads with
transformers alone, as that of `unify` does. Fine-tunes that changed more than their feed-forward networks are refused
unless told what to do: `average` the rest (as Branch-Train-MiX does, Sukhbaatar et al. 2024, arXiv:2403.07816), or
keep the `seed`'s.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers.dynamic_module_utils import custom_object_save

from collegium.core.artifacts import Artifact, read_artifact, writing
from collegium.core.errors import IncompatibleExperts, InputError
from collegium.core.progress import say
from collegium.core.router_settings import RouterSettings
from collegium.data.items import Item
from collegium.models.seed_model import WHOLE_CLIP, load_seed_model
from collegium.moe.architectures import Architecture, architecture_of
from collegium.moe.modeling import UNIFIED_CLASSES
from collegium.unify.adapter import is_adapter, read_adapter
from collegium.unify.byte_merge import SHARD, Constant, Output, write_outputs
from collegium.unify.checkpoint import (
    FLOATS,
    Checkpoint,
    StoredTensor,
    read_checkpoint,
    read_json,
    shortened,
)
from collegium.unify.compatibility import Shared, check_experts, read_config
from collegium.unify.current_names import Rename, current_name, renamed
from collegium.unify.example_router import State, random_routers, routers_from_examples
from collegium.unify.merge import DTYPES, moe_config
from collegium.unify.moe_layout import ffn_of, kept_rank, moe_outputs, num_layers
from collegium.unify.whole_clip import is_whole_clip, merged_class, vision_towers

KIND = "merged-model"
CARD = "README.md"
POOLER = "pooler."  # never used for embeddings; `load_seed_model` makes one that is not there zero as well
UNTRAINED = "the router is random and must be trained before the model is used, with transformers.Trainer for example"
# Every layer decides: the fine-tunes changed every layer, and this is the MoE that other programs know.
ROUTER = RouterSettings(decide="every-layer")
CARRIED = (
    "added_tokens.json", "chat_template.jinja", "generation_config.json", "merges.txt", "preprocessor_config.json",
    "sentencepiece.bpe.model", "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "vocab.json", "vocab.txt",
)  # fmt: skip


def merge_checkpoints(
    seed_folder: Path,
    experts: Mapping[str, Path],
    destination: Path,
    router: RouterSettings = ROUTER,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    shared: Shared = "refuse",
    keep_lora: bool = False,
    examples: Mapping[str, Sequence[Item]] | None = None,
    random_seed: int = 0,
    shard_bytes: int = SHARD,
) -> Artifact:
    """Merge the experts in `experts` (name → folder) into a model folder at `destination`.

    Args:
        router: without a context chosen, it gets one that the family can have.
        dtype: of the merged model; None = that of the seed's feed-forward networks.
        keep_lora: LoRA folders stay factors, beside one base, instead of being merged into whole matrices.
        examples: expert → texts, for a router in closed form; None = a random one.
        random_seed: of that random router.

    Raises:
        InputError: an unsupported family, or examples for some experts alone.
        IncompatibleExperts: what does not fit, all of it.
        RunError: the disk is full; nothing is left behind.
    """
    if not experts:
        raise InputError("There is no expert to merge.", expected="one or more folders")
    stored_seed = read_checkpoint(seed_folder)
    architecture = _architecture(stored_seed)
    router = with_context_of(router, architecture)
    seed_config = read_config(seed_folder)
    if seed_config is None:
        raise InputError(f"The configuration of the seed model {seed_folder} is malformed.", do="get the model again")
    if is_whole_clip(stored_seed):
        seed_config = seed_config.vision_config
    config = moe_config(seed_config, list(experts), router)
    model_class = merged_class(stored_seed)
    rename = current_name(seed_config, model_class)
    seed = renamed(stored_seed, rename)
    read = {name: read_expert(folder, seed, rename) for name, folder in experts.items()}
    seed, read, left_out = vision_towers(seed, read, shared)
    layers = range(config.first_moe_layer, num_layers(seed, architecture))
    ffn = ffn_of(seed, architecture, layers)
    stored = _safetensors_dtype(dtype, seed, ffn_of(seed, architecture))
    ranks = [kept_rank(expert, seed, ffn) for expert in read.values()] if keep_lora else []
    config.expert_ranks = ranks if any(rank is not None for rank in ranks) else None
    model = _skeleton(model_class, config, stored)
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name not in model.all_tied_weights_keys}
    seed, read, notes = _only_needed(seed, read, {*wanted, *ffn}, set(model.all_tied_weights_keys))
    notes += left_out + check_experts(seed, read, ffn, shared, stored)
    if keep_lora:
        notes += _merged_anyway(experts, ranks)
    routers = _routers(seed_folder, list(experts), model, router, examples, random_seed)
    outputs = moe_outputs(
        seed, read, architecture, ffn, routers, stored, shared, config.keeps_seed_ffn, config.expert_ranks
    )
    outputs += _poolers(outputs, wanted)
    for note in [*notes, *([UNTRAINED] if examples is None and len(experts) > 1 else [])]:
        say(f"warning: {note}")
    settings = {
        "experts": list(experts),
        "dtype": str(FLOATS[stored]).removeprefix("torch."),
        "shared": shared,
        "expert_ranks": config.expert_ranks,
        "router": router.model_dump(mode="json"),
        "random_seed": random_seed,
        "notes": notes,
    }
    with writing(destination, KIND, {}, settings) as folder:
        write_outputs(folder, outputs, shard_bytes)
        custom_object_save(model, folder, config=config)
        config.save_pretrained(folder)
        for name in CARRIED:
            if (seed_folder / name).is_file():
                shutil.copyfile(seed_folder / name, folder / name)
        has_router = examples is not None or len(experts) == 1
        (folder / CARD).write_text(_card(experts, model, has_router, notes), encoding="utf-8")
    return read_artifact(destination, KIND, verify=False)


def read_expert(folder: Path, seed: Checkpoint, rename: Rename) -> Checkpoint:
    """A whole checkpoint or a LoRA folder, its tensors under the seed's names."""
    return read_adapter(folder, seed, rename) if is_adapter(folder) else renamed(read_checkpoint(folder), rename)


def with_context_of(router: RouterSettings, architecture: Architecture) -> RouterSettings:
    """A context that was not chosen is one that the family can have: the tokens so far, or the whole sequence."""
    if "context" in router.model_fields_set:
        return router
    return router.model_copy(update={"context": "causal" if architecture.kind == "decoder" else "sequence"})


def _architecture(seed: Checkpoint) -> Architecture:
    if seed.faults:
        raise InputError(f"The seed model {seed.folder} cannot be read.", got="; it ".join(seed.faults))
    tokenizer = seed.folder / "tokenizer_config.json"
    if tokenizer.is_file() and "auto_map" in read_json(tokenizer, []):  # the merged folder is loaded with remote code
        raise InputError(f"The tokenizer of the seed model {seed.folder} brings code of its own, which is never run.")
    merged = merged_class(seed)
    if merged is None:
        raise InputError(
            "The seed model is of a family that is not supported yet.",
            got=seed.config.get("model_type"),
            expected=f"one of {', '.join(sorted([*UNIFIED_CLASSES, WHOLE_CLIP]))}",
        )
    return architecture_of(merged.config_class.seed_model_type)


def _safetensors_dtype(dtype: str | None, seed: Checkpoint, ffn: Mapping[str, str]) -> str:
    if dtype is not None:
        return next(name for name, value in FLOATS.items() if value == DTYPES[dtype])
    own = {tensor.dtype for name in ffn if isinstance(tensor := seed.tensors[name], StoredTensor)}
    if len(own) != 1 or not own <= FLOATS.keys():
        raise InputError(
            "The seed's feed-forward networks do not have one dtype.", got=sorted(own), do="choose one with --dtype"
        )
    return own.pop()


def _skeleton(model_class: Any, config: Any, stored: str) -> Any:
    """The merged model without values: its names and shapes are what the files must hold."""
    config.dtype = FLOATS[stored]
    config.architectures = [model_class.__name__]
    try:
        with torch.device("meta"):
            return model_class(config)
    except ValueError as error:
        raise InputError("The seed model cannot become a mixture of experts.", got=str(error)) from None


def _routers(
    seed_folder: Path,
    names: Sequence[str],
    model: Any,
    router: RouterSettings,
    examples: Mapping[str, Sequence[Item]] | None,
    random_seed: int,
) -> dict[int, State]:
    if examples is None:
        dim = next(iter(model.routers.values())).weight.shape[1]
        return random_routers(dim, len(names), list(model.routers), router, random_seed)
    if set(examples) != set(names) or not all(examples.values()):
        raise InputError(
            "Examples are needed for every expert, or for none.",
            got=", ".join(name for name, texts in examples.items() if texts) or "none",
            expected=", ".join(names),
        )
    seed = load_seed_model(str(seed_folder))
    return routers_from_examples(seed, {name: examples[name] for name in names}, list(model.routers), router)


def _only_needed(
    seed: Checkpoint, experts: Mapping[str, Checkpoint], needed: set[str], tied: set[str]
) -> tuple[Checkpoint, dict[str, Checkpoint], list[str]]:
    """Seed and experts without the tensors that the merged class never has, and what is to be said of these.

    An expert's tied output layer stays: `check_experts` refuses one that is no copy of the embedding.
    """
    poolers = {name for name in needed if name.startswith(POOLER) and name not in seed.tensors}
    needed = needed - poolers  # experts may have been given random ones while they were loaded for training
    usable = needed | tied
    dropped = [name for name in seed.tensors if name not in usable]
    notes = [f"the merged model has no {shortened(dropped)}, which the seed has"] if dropped else []
    kept = {}
    for name, expert in experts.items():
        extra = [key for key in expert.tensors if key not in usable and key not in seed.tensors]
        if extra:
            notes.append(
                f"{name} has {len(extra)} tensors that neither the seed nor the merged model uses, which are dropped: "
                f"{shortened(extra)}"
            )
        kept[name] = _with_only(expert, usable)
    return _with_only(seed, needed), kept, notes


def _with_only(checkpoint: Checkpoint, names: set[str]) -> Checkpoint:
    return replace(checkpoint, tensors={key: tensor for key, tensor in checkpoint.tensors.items() if key in names})


def _merged_anyway(experts: Mapping[str, Path], ranks: Sequence[int | None]) -> list[str]:
    names = [
        name for (name, folder), rank in zip(experts.items(), ranks, strict=True) if rank is None and is_adapter(folder)
    ]
    return [
        f"{name} was merged into whole matrices: with DoRA, factors alone do not say what they are" for name in names
    ]


def _poolers(outputs: Sequence[Output], wanted: Mapping[str, Any]) -> list[Output]:
    """The pooler that the merged class has and the seed has not; all else must be there, in the class's shapes."""
    for output in outputs:
        expected = list(wanted[output.name].shape) if output.name in wanted else "no such tensor"
        if list(output.source.shape) != expected:
            raise IncompatibleExperts(
                f"The seed model's {output.name} does not fit its own configuration.",
                got=list(output.source.shape),
                expected=expected,
            )
    absent = sorted(wanted.keys() - {output.name for output in outputs})
    for name in absent:
        if not name.startswith(POOLER):
            raise IncompatibleExperts(f"The seed model has no {name}, which the merged model needs.")
    return [Output(name, outputs[0].dtype, Constant(torch.zeros(wanted[name].shape))) for name in absent]


def _ranks(config: Any) -> str:
    kept = [
        f"{name} {rank}"
        for name, rank in zip(config.expert_names, config.expert_ranks, strict=True)
        if rank is not None
    ]
    return f"Kept as LoRA factors beside the seed's feed-forward networks, with their rank: {', '.join(kept)}."


def _card(experts: Mapping[str, Path], model: Any, has_router: bool, notes: Sequence[str]) -> str:
    config, auto_class = model.config, model._auto_class
    lines = [
        "---",
        "library_name: transformers",
        "tags: [mixture-of-experts, collegium]",
        "---",
        f"# {' + '.join(experts)}",
        "",
        f"A mixture of {len(experts)} fine-tunes of one {config.seed_model_type} model, merged by Collegium: "
        f"{', '.join(experts)}, in this order.",
        "",
        f"Router: decided {config.decide}, context `{config.context}`, experts for each token: "
        f"{config.experts_per_token}; always float32.",
        *([] if config.expert_ranks is None else ["", _ranks(config)]),
        *([] if has_router else ["", f"**Warning**: {UNTRAINED}. Its parameters have `.router.` in their names."]),
        *(["", "What the merge changed:", "", *(f"* {note}" for note in notes)] if notes else []),
        "",
        "```python",
        f"from transformers import {auto_class}",
        f"model = {auto_class}.from_pretrained(folder, trust_remote_code=True)  # or: import collegium",
        "```",
        "",
    ]
    return "\n".join(lines)
