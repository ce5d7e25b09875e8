"""What a proxy teaches: the pool's own label where the pool is prompted, otherwise the seed's answer (distillation).

The seed answers among all classes, or among those of the pool's domain where there is one (owner/head.py).

Used by owners while they train and by the coordinator while it tunes and judges, so both mean the same thing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from collegium.models.tasks import ClassSet, seed_answers


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


def proxy_targets(
    embeddings: Float32[np.ndarray, "items dim"],
    labels: Sequence[str] | None,
    classes: ClassSet,
    pool_domain: str | None,
    logit_scale: float,
) -> Targets:
    """Targets of pool items.

    Args:
        embeddings: the seed's embeddings of the items.
        labels: the pool's labels of the items; None = distillation.
        classes: all classes, those of the pool (where it is prompted) among them.
        pool_domain: name of the pool's classes in `classes`, which alone compete; None = all compete.
    """
    if pool_domain is None or labels is None:
        right = list(range(len(classes.names))) if pool_domain is None else classes.of(pool_domain)
        answers = np.zeros((len(embeddings), len(classes.names)), dtype=np.float32)
        answers[:, right] = seed_answers(embeddings, classes.embeddings[right], logit_scale)
        allowed = np.zeros_like(answers)
        allowed[:, right] = 1.0
        return Targets(answers, allowed)
    return label_targets([classes.index(pool_domain, label) for label in labels], classes.of(pool_domain), classes)


def label_targets(labels: Sequence[int], competing: Sequence[int], classes: ClassSet) -> Targets:
    """One-hot targets among the competing classes."""
    probabilities = np.zeros((len(labels), len(classes.names)), dtype=np.float32)
    probabilities[np.arange(len(labels)), list(labels)] = 1.0
    allowed = np.zeros_like(probabilities)
    allowed[:, list(competing)] = 1.0
    return Targets(probabilities, allowed)


def as_tensors(targets: Targets, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(probabilities, allowed) of some rows, as tensors."""
    chosen = list(rows)
    return torch.from_numpy(targets.probabilities[chosen]), torch.from_numpy(targets.allowed[chosen])
