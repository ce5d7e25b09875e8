"""Exercises: items and what each of them should teach, in the form that a task needs.

Training, joint tuning and judging ask no further than this: a batch of some rows, the loss of a model's output on it,
and the answers that a model gives. One class for tasks with classes (label_exercises.py), one for decoders
(causal_exercises.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from collegium.data.items import Item


class Exercises(ABC):
    """Items with their targets; an exercise is named by its row."""

    @property
    @abstractmethod
    def items(self) -> list[Item]:
        """The texts or pictures, without what they teach."""

    @abstractmethod
    def take(self, rows: Sequence[int]) -> "Exercises":
        """Some of the exercises, in that order."""

    @abstractmethod
    def __add__(self, other: "Exercises") -> "Exercises":
        """These and then the others, of the same task."""

    @abstractmethod
    def collate(self, rows: list[int]) -> dict[str, Tensor]:
        """A batch: what the model reads (`encoder.model_inputs`), and the targets."""

    @abstractmethod
    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        """Mean loss of a batch over its items; a scalar.

        Args:
            output: of the model, for the batch.
        """

    @abstractmethod
    def answers(self, model: Any) -> tuple[Int[np.ndarray, " answers"], Int[np.ndarray, " answers"]]:
        """(what the model answers, what is right), by whatever numbers the task counts in."""

    def __len__(self) -> int:
        return len(self.items)
