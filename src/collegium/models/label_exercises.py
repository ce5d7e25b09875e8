"""Exercises of tasks with classes: soft targets over the classes that compete for an item.

A private example teaches its label; a proxy the pool's own label where the pool is prompted, otherwise the seed's
answer (distillation). Owners train by them, the coordinator tunes and judges by them, so both mean the same thing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from collegium.data.items import Item
from collegium.models.encoder import Encoder
from collegium.models.exercises import Exercises
from collegium.models.tasks import ClassSet, matching_loss, seed_answers


@dataclass(frozen=True)
class Targets:
    """Soft targets of some items, and which classes compete for each; both [items, classes]."""

    probabilities: Float32[np.ndarray, "items classes"]
    allowed: Float32[np.ndarray, "items classes"]

    def __len__(self) -> int:
        return len(self.probabilities)

    def __add__(self, other: "Targets") -> "Targets":
        return Targets(
            np.concatenate([self.probabilities, other.probabilities]),
            np.concatenate([self.allowed, other.allowed]),
        )

    def take(self, rows: Sequence[int]) -> "Targets":
        return Targets(self.probabilities[list(rows)], self.allowed[list(rows)])


@dataclass(frozen=True)
class LabelExercises(Exercises):
    """Items whose embedding should be closest to the right class.

    Attributes:
        reader: turns items into batches, and pools the model's output; the seed.
        of_items: the items.
        classes: all classes that any target names.
    """

    reader: Encoder
    of_items: Sequence[Item]
    targets: Targets
    classes: ClassSet

    @property
    def items(self) -> list[Item]:
        return list(self.of_items)

    def take(self, rows: Sequence[int]) -> "LabelExercises":
        return replace(self, of_items=[self.of_items[row] for row in rows], targets=self.targets.take(rows))

    def __add__(self, other: Exercises) -> "LabelExercises":
        assert isinstance(other, LabelExercises)
        return replace(self, of_items=[*self.of_items, *other.of_items], targets=self.targets + other.targets)

    def with_rows(self, rows: Float[Tensor, "rows dim"]) -> "LabelExercises":
        """The same, with other embeddings of the first classes: rows of a head that are being trained."""
        embeddings = torch.cat([rows, self.classes.embeddings[len(rows) :].to(rows.device)])
        return replace(self, classes=replace(self.classes, embeddings=embeddings))

    def collate(self, rows: list[int]) -> dict[str, Tensor]:
        targets = self.targets.take(rows)
        return {
            **self.reader.tokenise([self.of_items[row] for row in rows]),
            "targets": torch.from_numpy(targets.probabilities),
            "allowed": torch.from_numpy(targets.allowed),
        }

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        embeddings = self.reader.pool(output, batch)
        classes = self.classes.embeddings.to(embeddings.device)
        return matching_loss(embeddings, classes, batch["targets"], batch["allowed"], self.classes.logit_scale)

    def answers(self, model: Any) -> tuple[Int[np.ndarray, " answers"], Int[np.ndarray, " answers"]]:
        """The best allowed class of every item, and the target's best: the pool's label, or the seed's answer."""
        logits = self.classes.logits(replace(self.reader, model=model), self.of_items)
        best = np.where(self.targets.allowed > 0, logits, -np.inf).argmax(axis=1)
        return best, self.targets.probabilities.argmax(axis=1)


def label_targets(labels: Sequence[int], competing: Sequence[int], classes: ClassSet) -> Targets:
    """One-hot targets among the competing classes."""
    probabilities = np.zeros((len(labels), len(classes.names)), dtype=np.float32)
    probabilities[np.arange(len(labels)), list(labels)] = 1.0
    allowed = np.zeros_like(probabilities)
    allowed[:, list(competing)] = 1.0
    return Targets(probabilities, allowed)


def proxy_targets(
    embeddings: Float32[np.ndarray, "items dim"],
    labels: Sequence[str] | None,
    classes: ClassSet,
    pool_domain: str | None,
) -> Targets:
    """Targets of pool items.

    Args:
        embeddings: the seed's embeddings of the items.
        labels: the pool's labels of the items; None = distillation.
        classes: all classes, those of the pool (where it is prompted) among them.
        pool_domain: name of the pool's classes in `classes`, which alone compete; None = all compete.
    """
    if pool_domain is not None and labels is not None:
        return label_targets([classes.index(pool_domain, label) for label in labels], classes.of(pool_domain), classes)
    right = list(range(len(classes.names))) if pool_domain is None else classes.of(pool_domain)
    answers = np.zeros((len(embeddings), len(classes.names)), dtype=np.float32)
    answers[:, right] = seed_answers(embeddings, classes.embeddings[right], classes.logit_scale)
    allowed = np.zeros_like(answers)
    allowed[:, right] = 1.0
    return Targets(answers, allowed)
