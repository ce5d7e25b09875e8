"""Trains an expert: the FFN sublayers only, on private data and the owner's own proxies (MetaMoE, stage 2).

Every other tensor stays bit-identical to the seed, which is checked. The published code lets the text proxies in
without their answers; here they are trained on them (`owner/exercises.py`).
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from collegium.core.errors import InputError, RunError
from collegium.core.recipe import TrainingSettings
from collegium.data.items import Item
from collegium.models.encoder import model_inputs
from collegium.models.exercises import Exercises
from collegium.models.fit import fit
from collegium.models.label_exercises import LabelExercises
from collegium.models.seed_model import SeedModel
from collegium.moe.architectures import ffn_parameter_names, layers_of

PART = 8  # texts that are computed at a time: fewer rows make slower products


@dataclass(frozen=True)
class Expert:
    """A trained expert.

    Attributes:
        tensors: neutral name → float32 tensor: `layers.1.up_proj.weight`, or `layers.1.up_proj.lora_A` and `.lora_B`.
        encoder: the seed with the expert's FFNs, for its own forward pass.
        head: trained rows of classes, of length 1; None where no row was to be trained.
    """

    tensors: dict[str, Tensor]
    encoder: SeedModel
    head: Float32[Tensor, "_ dim"] | None


def train_expert(
    seed: SeedModel,
    exercises: Exercises,
    settings: TrainingSettings,
    layers: Sequence[int],
    random_seed: int,
    checkpoints: Path | None = None,
    head_rows: int = 0,
) -> Expert:
    """Fine-tune the FFNs of `layers` on the exercises; the seed itself is left as it is.

    Args:
        head_rows: the first so many embeddings of the exercises' classes are trained as well (owner/head.py).

    Raises:
        RunError: the loss or a weight became non-finite, or another tensor than an FFN's changed.
    """
    model = copy.deepcopy(seed.model)
    names = {
        neutral: own
        for layer in layers
        for neutral, own in ffn_parameter_names(seed.architecture, model, layer).items()
    }
    trainable, model = _make_trainable(model, names, settings, seed)
    student = model
    if head_rows:
        assert isinstance(exercises, LabelExercises)
        student = _WithHead(model, exercises.classes.embeddings[:head_rows])

    items = exercises.items

    def collate(rows: list[int]) -> dict[str, Any]:
        parts = _of_similar_length(items, rows)
        return {
            "parts": [exercises.collate(part) for part in parts],
            "shares": [len(part) / len(rows) for part in parts],
        }

    def part_loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        output = module(**model_inputs(batch))
        if isinstance(exercises, LabelExercises) and head_rows:
            output, rows = output
            return exercises.with_rows(rows).loss(output, batch)
        return exercises.loss(output, batch)

    def loss(module: nn.Module, batch: dict[str, Any]) -> Tensor:
        parts = zip(batch["parts"], batch["shares"], strict=True)
        return torch.stack([share * part_loss(module, part) for part, share in parts]).sum()

    description = "train the expert"
    fit(student, len(exercises), collate, loss, settings, random_seed, description, checkpoints)
    tensors = {name: parameter.detach().float().cpu().clone() for name, parameter in trainable.items()}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise RunError(f"Training made {name} infinite or not a number.", do="use a smaller learning rate")
    dense = _merged(model, settings)
    _check_untouched(seed.model, dense, set(names.values()))
    head = student.rows().detach().float().cpu().clone() if isinstance(student, _WithHead) else None
    return Expert(tensors, _as_encoder(seed, dense), head)


def _of_similar_length(items: Sequence[Item], rows: list[int]) -> list[list[int]]:
    """A batch in parts that are computed apart: a text is not padded to the longest one of the batch.

    The loss is the batch's: a mean over items, each of which is in one part. Characters stand for tokens, since only
    the speed depends on them.
    """
    if len(rows) <= PART or not all(isinstance(items[row], str) for row in rows):
        return [rows]
    ordered = sorted(rows, key=lambda row: (len(str(items[row])), row))
    return [ordered[start : start + PART] for start in range(0, len(ordered), PART)]


class _WithHead(nn.Module):
    """A model and rows of a head that are trained with it."""

    def __init__(self, model: nn.Module, rows: Float32[Tensor, "_ dim"]):
        super().__init__()
        self.model = model
        self.weight = nn.Parameter(rows.clone())

    def forward(self, **inputs: Tensor) -> tuple[Any, Tensor]:
        return self.model(**inputs), self.rows()

    def rows(self) -> Float[Tensor, "_ dim"]:
        return nn.functional.normalize(self.weight, dim=-1)


def _make_trainable(
    model: Any, names: dict[str, str], settings: TrainingSettings, seed: SeedModel
) -> tuple[dict[str, nn.Parameter], Any]:
    """Switch gradients on for the FFNs (or for LoRA factors beside them); neutral name → parameter."""
    model.requires_grad_(False)
    if settings.parameters == "full":
        parameters = dict(model.named_parameters())
        trainable = {neutral: parameters[own].requires_grad_(True) for neutral, own in names.items()}
        return trainable, model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise InputError("training.parameters=lora needs peft.", do="pip install 'collegium[adapters]'") from None
    torch.manual_seed(0)  # LoRA's A starts random; Trainer seeds only afterwards
    modules = sorted({own.rpartition(".")[0] for own in names.values()})
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.lora_alpha,  # pyright: ignore[reportArgumentType]  peft takes any number
        lora_dropout=0.0,
        bias="none",
        target_modules=modules,
    )
    with warnings.catch_warnings():  # peft 0.21 asks transformers 5.24 by the old name
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)
        wrapped = get_peft_model(model, config)
    layers = layers_of(wrapped.get_base_model(), seed.architecture)
    trainable = {}
    for neutral in names:
        if not neutral.endswith(".weight"):
            continue
        _, layer, matrix, _ = neutral.split(".")
        module = layers[int(layer)].get_submodule(seed.architecture.matrices[matrix])
        for factor in ("lora_A", "lora_B"):
            trainable[f"layers.{layer}.{matrix}.{factor}"] = getattr(module, factor)["default"].weight
    return trainable, wrapped


def _merged(model: Any, settings: TrainingSettings) -> Any:
    return model if settings.parameters == "full" else model.merge_and_unload()


def _as_encoder(seed: SeedModel, model: Any) -> SeedModel:
    model.eval().requires_grad_(False)
    return replace(seed, model=model)


def _check_untouched(seed: nn.Module, tuned: nn.Module, ffn: set[str]) -> None:
    after = tuned.state_dict()
    for name, tensor in seed.state_dict().items():
        if name not in ffn and not torch.equal(tensor, after[name].cpu()):
            raise RunError(f"{name} changed in training, though only feed-forward networks may.")
