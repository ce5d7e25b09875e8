"""Whether fine-tunes of one seed can be merged: every difference is found before any work, and all are told together.

First, within a second whatever the size: what is wrong with the folders; configurations and tokenizers; names, shapes
and dtypes of the tensors. Only where all that fits, the values, streamed: tensors outside the experts must be the
seed's to the bit (in the expert's own dtype, where that is another one), and nothing may be infinite or NaN.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from collegium.core.errors import IncompatibleExperts
from collegium.core.progress import tracked
from collegium.unify.checkpoint import FLOATS, Checkpoint, Source, StoredTensor, shortened
from collegium.unify.stored_values import equal, finite

Shared = Literal["refuse", "average", "seed"]
# Fields that change nothing of what the merged model computes, or where the seed's value is kept anyway.
INDIFFERENT = {
    "_name_or_path", "architectures", "attention_dropout", "attention_probs_dropout_prob", "auto_map", "bos_token_id",
    "classifier_dropout", "dtype", "eos_token_id", "hidden_dropout_prob", "id2label", "initializer_range", "label2id",
    "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "problem_type", "return_dict",
    "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip
WHY = {
    "vocab_size": "a row of the embedding would mean another token; train again without resizing the embedding",
    "tie_word_embeddings": "tied and untied output layers cannot be mixed",
    "rope_parameters": "positions would mean something else; train again with the seed's",
}


def check_experts(
    seed: Checkpoint, experts: Mapping[str, Checkpoint], ffn: Mapping[str, str], shared: Shared, dtype: str
) -> list[str]:
    """Compare all experts with the seed; return what the merge will change, for terminal and model card.

    Args:
        experts: name → checkpoint, its tensors under the seed's names.
        ffn: the tensors that become experts → their neutral names (`layers.1.up_proj.weight`).
        shared: what becomes of tensors outside the experts that are not the seed's.
        dtype: that the merged model will have, as safetensors names it.

    Raises:
        IncompatibleExperts: with every fault of every expert, of the headers or else of the values.
    """
    notes: list[str] = []
    faults = [f"the seed model {fault}" for fault in seed.faults]
    faults += _tokens_without_a_row("the seed model", seed, seed)
    faults += _dtypes("the seed model", seed.tensors, dtype, notes)
    for name, expert in experts.items():
        faults += [f"{name} {fault}" for fault in expert.faults]
        if not expert.faults:
            faults += [f"{name}: {fault}" for fault in _config_faults(seed, expert)]
            faults += _tokens_without_a_row(name, expert, seed)
            notes += _other_tokens(name, expert, seed)
            faults += [f"{name}: {fault}" for fault in _missing_or_misshapen(seed, expert, ffn, shared)]
            faults += _unknown(name, seed, expert, shared, notes)
            own = {key: expert.tensors[key] for key in _written(seed, expert, ffn, shared)}
            faults += _dtypes(name, own, dtype, notes)
    if faults:  # reading gigabytes of values could only add to them
        raise _refusal(faults, "correct these first; the values were not compared yet")
    changed, faults = _compare_values(seed, experts, ffn, shared)
    told = [
        f"{name} changed {len(keys)} tensors outside the feed-forward networks: {shortened(keys)}"
        for name, keys in changed.items()
    ]
    if shared == "refuse" and told:
        raise _refusal(
            faults + told,
            "use --shared average (the mean of all experts) or --shared seed (the seed's own) for what they changed "
            "outside their feed-forward networks",
        )
    if faults:
        raise _refusal(faults, "train or save these again")
    fate = "averaged over all experts" if shared == "average" else "left out, the seed's are kept"
    return notes + [f"{text}; they are {fate}" for text in told]


def _refusal(faults: list[str], do: str) -> IncompatibleExperts:
    count = f"{len(faults)} reason{'s' if len(faults) > 1 else ''}"
    return IncompatibleExperts(f"The experts cannot be merged, for {count}:\n    " + "\n    ".join(faults), do=do)


def _config_faults(seed: Checkpoint, expert: Checkpoint) -> Iterator[str]:
    if expert.config is seed.config:
        return  # an adapter
    ours, theirs = _canonical(seed), _canonical(expert)
    for field in sorted(ours.keys() | theirs.keys()):
        if field not in INDIFFERENT and ours.get(field) != theirs.get(field):
            why = f" ({WHY[field]})" if field in WHY else ""
            yield f"{field} is {theirs.get(field)}, the seed's is {ours.get(field)}{why}"


def read_config(folder: Path) -> Any:
    """A folder's configuration as transformers reads it; None where it cannot."""
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError):
        return None


def _canonical(checkpoint: Checkpoint) -> dict[str, Any]:
    """The configuration with its defaults filled in, so that an absent key equals its default."""
    config = read_config(checkpoint.folder)
    return checkpoint.config if config is None else json.loads(json.dumps(config.to_dict(), default=str))


def _tokens_without_a_row(name: str, checkpoint: Checkpoint, seed: Checkpoint) -> Iterator[str]:
    rows = seed.config.get("vocab_size")
    if not isinstance(rows, int):
        return
    beyond = [f"{token!r} = {index}" for token, index in _token_ids(checkpoint.folder).items() if index >= rows]
    if beyond:
        yield (
            f"{name}'s tokenizer has {len(beyond)} tokens beyond the {rows} rows of the seed's embedding: "
            f"{shortened(beyond)}; train again with tokens that the seed has, such as unused or reserved ones"
        )


def _other_tokens(name: str, expert: Checkpoint, seed: Checkpoint) -> Iterator[str]:
    files = [checkpoint.folder / "tokenizer.json" for checkpoint in (seed, expert)]
    if all(file.is_file() for file in files) and files[0].read_bytes() != files[1].read_bytes():
        known = _token_ids(seed.folder)
        other = [token for token, index in _token_ids(expert.folder).items() if known.get(token) != index]
        if other:
            yield f"{name}'s tokenizer is not the seed's, which is kept; it differs in {shortened(map(repr, other))}"


def _token_ids(folder: Path) -> dict[str, int]:
    """Token → id of a folder's `tokenizer.json` and `added_tokens.json`; empty where there are none."""
    try:
        ids: dict[str, int] = {}
        if (folder / "tokenizer.json").is_file():
            content = json.loads((folder / "tokenizer.json").read_bytes())
            vocabulary = content["model"].get("vocab") or {}
            if isinstance(vocabulary, list):
                vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
            ids = vocabulary | {entry["content"]: entry["id"] for entry in content.get("added_tokens") or []}
        if (folder / "added_tokens.json").is_file():
            ids = ids | json.loads((folder / "added_tokens.json").read_bytes())
        return {str(token): int(index) for token, index in ids.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _missing_or_misshapen(
    seed: Checkpoint, expert: Checkpoint, ffn: Mapping[str, str], shared: Shared
) -> Iterator[str]:
    for key, tensor in seed.tensors.items():
        where = f" (layer {ffn[key].split('.')[1]}, {ffn[key].split('.')[2]})" if key in ffn else ""
        if key not in expert.tensors:
            if key in ffn or shared != "seed":
                yield f"{key}{where} is missing"
        elif expert.tensors[key].shape != tensor.shape:
            theirs, ours = list(expert.tensors[key].shape), list(tensor.shape)
            yield f"{key}{where} has shape {theirs}, the seed's has {ours}; experts must start from the same seed"


def _unknown(name: str, seed: Checkpoint, expert: Checkpoint, shared: Shared, notes: list[str]) -> Iterator[str]:
    extra = [key for key in expert.tensors if key not in seed.tensors and not _is_tied_copy(key, expert)]
    if extra and shared == "refuse":
        yield f"{name} has {len(extra)} tensors that the seed has not: {shortened(extra)}; --shared seed drops them"
    elif extra:
        notes.append(f"{name} has {len(extra)} tensors that the seed has not, which are dropped: {shortened(extra)}")


def _is_tied_copy(key: str, checkpoint: Checkpoint) -> bool:
    """Some programs save a tied output layer beside the embedding whose weights it shares."""
    tensor, rows = checkpoint.tensors[key], checkpoint.config.get("vocab_size")
    if not _canonical(checkpoint).get("tie_word_embeddings") or tensor.shape[:1] != (rows,):
        return False
    embeddings = [other for other in checkpoint.tensors if other != key and "embed" in other]
    return any(
        checkpoint.tensors[other].shape == tensor.shape and equal(checkpoint.tensors[other], tensor)
        for other in embeddings
    )


def _written(seed: Checkpoint, expert: Checkpoint, ffn: Mapping[str, str], shared: Shared) -> list[str]:
    """Names of the expert's own tensors whose values reach the merged model."""
    return [
        key
        for key, tensor in expert.tensors.items()
        if key in seed.tensors and tensor is not seed.tensors[key] and (key in ffn or shared == "average")
    ]


def _dtypes(name: str, tensors: Mapping[str, Source], dtype: str, notes: list[str]) -> Iterator[str]:
    others: dict[str, list[str]] = {}
    for key, tensor in tensors.items():
        if isinstance(tensor, StoredTensor) and tensor.dtype != dtype:
            others.setdefault(tensor.dtype, []).append(key)
    for other, keys in sorted(others.items()):
        if other in FLOATS:
            notes.append(f"{name}: {len(keys)} tensors are cast from {other} to {dtype}: {shortened(keys, 2)}")
        else:
            yield f"{name} stores weights as {other}, which is no plain floating-point type: {shortened(keys)}"


def _compare_values(
    seed: Checkpoint, experts: Mapping[str, Checkpoint], ffn: Mapping[str, str], shared: Shared
) -> tuple[dict[str, list[str]], list[str]]:
    """(expert → tensors outside the experts that are not the seed's, faults)."""

    def is_float(tensor: Source) -> bool:
        return not isinstance(tensor, StoredTensor) or tensor.dtype in FLOATS

    changed: dict[str, list[str]] = {}
    work = [("the seed model", seed, key) for key in seed.tensors]
    work += [(name, expert, key) for name, expert in experts.items() for key in expert.tensors]
    faults = []
    for name, checkpoint, key in tracked(work, "compare with the seed"):
        ours, theirs = seed.tensors.get(key), checkpoint.tensors[key]
        if ours is None or ours.shape != theirs.shape or not is_float(ours) or not is_float(theirs):
            continue  # named already
        if theirs is ours and checkpoint is not seed:
            continue  # an adapter without factors for it
        if theirs is not ours and key not in ffn and not equal(ours, theirs):
            changed.setdefault(name, []).append(key)
        if (checkpoint is seed or key in ffn or shared == "average") and not finite(theirs):
            faults.append(f"{name}'s {key} holds infinite values or NaN")
    return changed, faults
