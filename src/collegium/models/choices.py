"""Multiple choice by log-likelihood (task causal-choice): the answer that a decoder finds most likely wins.

log p(answer | prompt) = Σ log p(token | prompt, tokens before it) over the answer's tokens and the end token. The
classes of owners with the same prompt share one pass over it, whose cache every answer continues.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from collegium.core.artifacts import canonical_json, sha256_of
from collegium.core.errors import RunError
from collegium.data.items import Item
from collegium.models.encoder import Encoder, Watch
from collegium.models.prompts import answer_ids, padded, prompt_ids
from collegium.models.tasks import Classes

PROMPTS_AT_A_TIME = 16
ANSWERS_AT_A_TIME = 64  # each holds a copy of its prompt's keys and values


@dataclass(frozen=True)
class Choices(Classes):
    """Classes whose names are the answers to a prompt.

    Attributes:
        prompts: domain → template with {text}, and {label} at its end.
    """

    prompts: Mapping[str, str]

    def logits(
        self, encoder: Encoder, items: Sequence[Item], batch_size: int = 64, watch: Watch | None = None
    ) -> Float32[np.ndarray, "items classes"]:
        """Log-likelihoods of all classes. Batches have sizes of their own: the memory of the cache counts."""
        scores = np.empty((len(items), len(self.names)), dtype=np.float32)
        for template in dict.fromkeys(self.prompts[domain] for domain, _ in self.names):
            classes = [index for index, (domain, _) in enumerate(self.names) if self.prompts[domain] == template]
            answers = [self.names[index][1] for index in classes]
            scores[:, classes] = np.stack(
                choice_log_likelihoods(encoder, template, items, [answers] * len(items), watch)
            ).reshape(len(items), len(classes))
        return scores

    def take(self, kept: Sequence[int]) -> "Choices":
        names = tuple(self.names[index] for index in kept)
        return Choices(names, {domain: self.prompts[domain] for domain, _ in names})

    @property
    def sha256(self) -> str:
        return sha256_of(canonical_json([self.names, dict(self.prompts)]))

    def __add__(self, other: Classes) -> "Choices":
        assert isinstance(other, Choices)
        return Choices(self.names + other.names, {**self.prompts, **other.prompts})


def choice_log_likelihoods(
    encoder: Encoder,
    template: str,
    items: Sequence[Item],
    choices: Sequence[Sequence[str]],
    watch: Watch | None = None,
) -> list[Float32[np.ndarray, " choices"]]:
    """log p(choice | prompt) of every choice of every item.

    Cost: O(tokens of the prompts + tokens of all choices).

    Args:
        choices: answers of each item.
        watch: is told the routing of the prompts' tokens.

    Raises:
        RunError: a likelihood is not a number.
    """
    tokenizer = encoder.tokenizer
    known = {answer: answer_ids(tokenizer, template, answer) for own in choices for answer in own}
    longest = encoder.max_length - max((len(ids) for ids in known.values()), default=0)
    prompts = [prompt_ids(tokenizer, template, str(item), longest) for item in items]
    found: list[Float32[np.ndarray, " choices"]] = [np.empty(0, np.float32)] * len(items)
    order = sorted(range(len(items)), key=lambda row: (len(prompts[row]), row))
    for start in range(0, len(order), PROMPTS_AT_A_TIME):
        rows = order[start : start + PROMPTS_AT_A_TIME]
        answers = [[known[answer] for answer in choices[row]] for row in rows]
        for row, values in zip(
            rows, _batch(encoder, [prompts[row] for row in rows], answers, rows, watch), strict=True
        ):
            found[row] = values
    if not all(np.isfinite(values).all() for values in found):
        raise RunError("The model gives a likelihood that is not a number.", do="check the model's weights")
    return found


def _batch(
    encoder: Encoder,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    rows: list[int],
    watch: Watch | None,
) -> list[Float32[np.ndarray, " choices"]]:
    model = encoder.model
    given = padded(prompts, encoder.tokenizer, model.device, left=True)
    with torch.inference_mode():
        extra = {} if watch is None else {"output_routing": True}
        output = model(**given, use_cache=True, logits_to_keep=1, **extra)
        if watch is not None:
            watch(rows, output.routings, given["attention_mask"])
        first = output.logits[:, -1].float().log_softmax(dim=-1)  # [prompts, vocabulary]
        pairs = [(index, ids) for index, own in enumerate(answers) for ids in own]
        scores: list[float] = []
        for start in range(0, len(pairs), ANSWERS_AT_A_TIME):
            part = pairs[start : start + ANSWERS_AT_A_TIME]
            of = torch.tensor([index for index, _ in part], device=model.device)
            scores += _continued(encoder, output.cache, given["attention_mask"], first, of, [ids for _, ids in part])
    ends = np.cumsum([len(own) for own in answers])[:-1]
    return np.split(np.array(scores, np.float32), ends)


def _continued(
    encoder: Encoder, cache: object, mask: Tensor, first: Tensor, of: Tensor, answers: Sequence[Sequence[int]]
) -> list[float]:
    """Log-likelihoods of answers, each after the prompt `of` it."""
    total = first[of, torch.tensor([ids[0] for ids in answers], device=of.device)].double()
    given = padded([ids[:-1] for ids in answers], encoder.tokenizer, of.device)  # the last token is only predicted
    past = copy.deepcopy(cache)
    past.batch_select_indices(of)  # pyright: ignore[reportAttributeAccessIssue]
    prompt = mask[of]
    positions = given["position_ids"] + prompt.sum(dim=1, keepdim=True)
    output = encoder.model(
        input_ids=given["input_ids"],
        attention_mask=torch.cat([prompt, given["attention_mask"]], dim=1),
        position_ids=positions,
        cache=past,
        use_cache=True,
    )
    likely = output.logits.float().log_softmax(dim=-1)  # [answers, tokens, vocabulary]
    targets = padded([ids[1:] for ids in answers], encoder.tokenizer, of.device)
    taken = likely.gather(2, targets["input_ids"].unsqueeze(2)).squeeze(2)
    return (total + (taken * targets["attention_mask"]).double().sum(dim=1)).tolist()
