"""Exercises of decoders: token sequences, of which the answer (or all of a text) is learnt.

A private example and a pool item with an answer teach the next token (cross-entropy over the answer alone; the
published code leaves the answers of proxies out). A pool item without an answer keeps the seed's predictions: the
divergence KL(seed ‖ model) over its tokens, as in distillation (Hinton et al. 2015, arXiv:1503.02531). Every item
weighs the same, however many tokens it teaches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from collegium.data.items import Item
from collegium.models.encoder import Encoder, model_inputs
from collegium.models.exercises import Exercises
from collegium.models.prompts import answer_ids, padded, prompt_ids, text_ids

ANSWERED_AT_A_TIME = 16  # items


@dataclass(frozen=True)
class Lesson:
    """Token ids of an item.

    Attributes:
        prompt: how many of them are given; the others are learnt. At least 1.
        distilled: the targets are the seed's predictions, not the tokens.
    """

    ids: list[int]
    prompt: int
    distilled: bool = False


@dataclass(frozen=True)
class CausalExercises(Exercises):
    """Items as token sequences.

    Attributes:
        seed: the model whose predictions are kept on distilled items, and its tokenizer.
    """

    seed: Encoder
    of_items: Sequence[Item]
    lessons: Sequence[Lesson]

    @property
    def items(self) -> list[Item]:
        return list(self.of_items)

    def take(self, rows: Sequence[int]) -> "CausalExercises":
        return replace(self, of_items=[self.of_items[row] for row in rows], lessons=[self.lessons[row] for row in rows])

    def __add__(self, other: Exercises) -> "CausalExercises":
        assert isinstance(other, CausalExercises)
        return replace(self, of_items=[*self.of_items, *other.of_items], lessons=[*self.lessons, *other.lessons])

    def collate(self, rows: list[int]) -> dict[str, Tensor]:
        lessons = [self.lessons[row] for row in rows]
        batch = padded([lesson.ids for lesson in lessons], self.seed.tokenizer, "cpu")
        places = torch.arange(batch["input_ids"].shape[1] - 1)
        given = torch.tensor([lesson.prompt for lesson in lessons]).unsqueeze(1) - 1
        learnt = (places >= given) & batch["attention_mask"][:, 1:].bool()  # of each next token
        return {**batch, "learnt": learnt, "distilled": torch.tensor([lesson.distilled for lesson in lessons])}

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        predicted = output.logits[:, :-1].float().log_softmax(dim=-1)  # [items, tokens - 1, vocabulary]
        device, distilled = predicted.device, batch["distilled"].to(predicted.device)
        next_tokens = batch["input_ids"][:, 1:].to(device)
        losses = -predicted.gather(2, next_tokens.unsqueeze(2)).squeeze(2)
        if distilled.any():
            taught = self._seed_predictions(batch, distilled, device)
            kept = (taught.exp() * (taught - predicted[distilled])).sum(dim=-1)
            losses = losses.masked_scatter(distilled.unsqueeze(1).expand_as(losses), kept)
        learnt = batch["learnt"].to(device)
        return ((losses * learnt).sum(dim=1) / learnt.sum(dim=1).clamp(min=1)).mean()

    def answers(self, model: Any) -> tuple[Int[np.ndarray, " answers"], Int[np.ndarray, " answers"]]:
        """The likeliest token at every place that is learnt, and the right one: the text's, or the seed's likeliest."""
        given, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        order = sorted(range(len(self)), key=lambda row: (len(self.lessons[row].ids), row))
        with torch.inference_mode():
            for start in range(0, len(order), ANSWERED_AT_A_TIME):
                batch = self.collate(order[start : start + ANSWERED_AT_A_TIME])
                inputs = {name: value.to(model.device) for name, value in model_inputs(batch).items()}
                likeliest = model(**inputs).logits[:, :-1].argmax(dim=-1).cpu()
                targets = batch["input_ids"][:, 1:].clone()
                if batch["distilled"].any():
                    seeds = self._seed_predictions(batch, batch["distilled"], torch.device("cpu"))
                    targets[batch["distilled"]] = seeds.argmax(dim=-1)
                given.append(likeliest[batch["learnt"]].numpy())
                right.append(targets[batch["learnt"]].numpy())
        return np.concatenate(given), np.concatenate(right)

    def _seed_predictions(self, batch: dict[str, Tensor], rows: Tensor, device: torch.device) -> Tensor:
        """The seed's log-probabilities of each next token; [rows, tokens - 1, vocabulary]."""
        own = self.seed.model.to(device)
        inputs = {name: value[rows.to(value.device)].to(device) for name, value in model_inputs(batch).items()}
        with torch.no_grad():
            return own(**inputs).logits[:, :-1].float().log_softmax(dim=-1)


def answered(seed: Encoder, template: str, items: Sequence[Item], answers: Sequence[str]) -> CausalExercises:
    """Items with an answer each, which may take half of the model's longest input; the rest of it is cut off."""
    lessons = []
    for item, answer in zip(items, answers, strict=True):
        own = answer_ids(seed.tokenizer, template, answer)[: seed.max_length // 2]
        prompt = prompt_ids(seed.tokenizer, template, str(item), seed.max_length - len(own))
        lessons.append(Lesson(prompt + own, len(prompt)))
    return CausalExercises(seed, items, lessons)


def whole_texts(seed: Encoder, items: Sequence[Item], distilled: bool) -> CausalExercises:
    """Texts of which every token but the first is learnt, or the seed's prediction of it."""
    ids = [text_ids(seed.tokenizer, str(item), seed.max_length) for item in items]
    return CausalExercises(seed, items, [Lesson(own, 1, distilled) for own in ids])
