"""A PEFT LoRA folder as changes to the seed's weights, merged as they are written: W + scale · B A.

Handled: scale = lora_alpha / r, or lora_alpha / √r with rsLoRA (Kalajdzievski 2023, arXiv:2312.03732); other ranks
and alphas for some modules (`rank_pattern`, `alpha_pattern`); DoRA (Liu et al. 2024, arXiv:2402.09353): the rows of
W + scale · B A, stretched to the length that was learnt. Whatever else the configuration switches on is refused by
name: ignored, it would give another model than the one that was trained. In particular PiSSA, OLoRA and the like
change W itself.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from collegium.models.expert_tensors import add_low_rank
from collegium.unify.checkpoint import FLOATS, Checkpoint, Source, StoredTensor, read_header, read_json, shortened

CONFIG, FACTORS = "adapter_config.json", "adapter_model.safetensors"
BEFORE = "base_model.model."  # what PEFT puts before every module's name
HANDLED = {"r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "peft_type"}
# Fields that only say how it was trained, or where it is applied (which the names of the factors tell as well).
NEUTRAL = {
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type",
}  # fmt: skip
KEEPS_SEED = (True, False, None, "gaussian", "orthogonal", "eva")  # values of init_lora_weights that leave W alone


@dataclass(frozen=True)
class LowRank:
    """A weight of the seed with LoRA factors merged into it, some rows at a time, in float32.

    Attributes:
        lengths: of the rows, with DoRA.
    """

    seed: Source
    lora_a: Float[Tensor, "rank inputs"]
    lora_b: Float[Tensor, "outputs rank"]
    scale: float
    lengths: Float[Tensor, " outputs"] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.seed.shape

    def values(self, first: int, count: int) -> Float[Tensor, " values"]:
        """Some values in row-major order; whole rows are computed around them."""
        columns = self.shape[1]
        rows = slice(first // columns, -(-(first + count) // columns))
        start = rows.start * columns
        seed = self.seed.values(start, (rows.stop - rows.start) * columns).float().reshape(-1, columns)
        merged = add_low_rank(seed, self.lora_a, self.lora_b[rows], self.scale)
        if self.lengths is not None:
            merged = merged * (self.lengths[rows] / torch.linalg.norm(merged, dim=1)).unsqueeze(1)
        return merged.reshape(-1)[first - start : first - start + count]


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / CONFIG).is_symlink()


def read_adapter(folder: Path, seed: Checkpoint, rename: Callable[[str], str]) -> Checkpoint:
    """The seed's checkpoint with this adapter's factors merged into the weights that they are for."""
    faults: list[str] = []
    file = folder / FACTORS
    links = [path.name for path in (folder / CONFIG, file) if path.is_symlink()]
    if links or not file.is_file():
        reason = f"holds links ({shortened(links)})" if links else f"has no {FACTORS}; pickles are never opened"
        return Checkpoint(folder, seed.config, seed.tensors, (reason,))
    config = read_json(folder / CONFIG, faults)
    faults += _refused(config)
    stored = read_header(file, faults)
    modules: dict[str, dict[str, StoredTensor]] = {}
    unknown = []
    for name, tensor in stored.items():
        found = re.fullmatch(rf"(?:{re.escape(BEFORE)})?(.+)\.(lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?", name)
        if found and tensor.dtype in FLOATS:
            modules.setdefault(found[1], {})[found[2]] = tensor
        else:
            unknown.append(name)
    if unknown:
        faults.append(f"holds tensors that are no LoRA factors: {shortened(unknown)}")
    changed = {}
    for module, factors in modules.items() if not faults else ():
        name = rename(f"{module}.weight")
        weight = seed.tensors.get(name)
        if weight is None:
            faults.append(f"has factors for {module}, which the seed does not have")
        elif not _fits(weight, factors, bool(config.get("use_dora"))):
            shapes = {kind: list(factor.shape) for kind, factor in factors.items()}
            faults.append(f"has factors of {module} that do not fit its weight {list(weight.shape)}: {shapes}")
        else:
            changed[name] = _merged(weight, factors, _scale(config, module, factors["lora_A"].shape[0]))
    if not modules and not faults:
        faults.append(f"{FACTORS} holds no factors")
    return Checkpoint(folder, seed.config, {**seed.tensors, **changed}, tuple(faults))


def _refused(config: Mapping[str, Any]) -> list[str]:
    if config.get("peft_type") != "LORA":
        return [f"is a PEFT adapter of type {config.get('peft_type')}; only LORA can be merged"]
    faults = []
    if config.get("init_lora_weights", True) not in KEEPS_SEED:
        faults.append(f"init_lora_weights = {config['init_lora_weights']!r} changed the seed's own weights")
    for field, value in sorted(config.items()):
        off = value in (None, False, 0, "", "none", {}, [])
        if field not in HANDLED | NEUTRAL | {"init_lora_weights"} and not off:
            faults.append(f"uses {field} = {str(value)[:80]}, which is not supported; merge it with PEFT itself first")
    patterns = config.get("alpha_pattern") or {}
    alphas = [config.get("lora_alpha", 8), *patterns.values()]
    if not all(isinstance(alpha, int | float) and math.isfinite(alpha) for alpha in alphas):
        faults.append(f"has an alpha that is no number: {shortened(alphas)}")
    harmful = [pattern for pattern in patterns if not re.fullmatch(r"\^?[\w.]+", pattern)]
    if harmful:  # a regular expression of a stranger may run for ever
        faults.append(f"has an alpha_pattern with regular expressions: {shortened(harmful)}; only names are supported")
    return faults


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """As PEFT finds it: a pattern holds for modules whose name ends with it."""
    alpha = config.get("lora_alpha", 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = value
            break
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _fits(weight: Source, factors: Mapping[str, StoredTensor], dora: bool) -> bool:
    if {"lora_A", "lora_B"} | ({"lora_magnitude_vector"} if dora else set()) != set(factors):
        return False
    (rows, columns), rank = weight.shape[-2:] if len(weight.shape) == 2 else (0, 0), factors["lora_A"].shape[:1]
    shapes = {"lora_A": (*rank, columns), "lora_B": (rows, *rank), "lora_magnitude_vector": (rows,)}
    return rank > (0,) and rows > 0 and all(factor.shape == shapes[kind] for kind, factor in factors.items())


def _merged(weight: Source, factors: Mapping[str, StoredTensor], scale: float) -> LowRank:
    read = {kind: factor.values(0, factor.size).float().reshape(factor.shape) for kind, factor in factors.items()}
    return LowRank(weight, read["lora_A"], read["lora_B"], float(scale), read.get("lora_magnitude_vector"))
