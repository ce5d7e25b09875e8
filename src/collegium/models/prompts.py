"""Token ids for decoders: a prompt, which the model is given, and an answer, which it should give.

A template such as `{text}\\nAnswer: {label}` is split at its fields. The text is cut where it is too long, never the
question behind it or the answer, and an answer ends with the tokenizer's end token, so that the likelihoods of a short
answer and of a longer one that starts with it are those of two different events.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from collegium.core.errors import InputError

FEWEST = 4  # tokens of a text that must fit beside the rest of its template


def prompt_ids(tokenizer: Any, template: str, text: str, longest: int) -> list[int]:
    """Ids of a template up to its label, with the text cut so that there are at most `longest`.

    Raises:
        InputError: the template leaves no room for a text.
    """
    before, _, after = template.partition("{text}")
    question = _ids(tokenizer, after.removesuffix("{label}").rstrip())
    room = longest - len(question)
    if room < FEWEST + len(_ids(tokenizer, before)):
        raise InputError(
            "The prompt leaves no room for a text.",
            got=f"{len(question)} tokens after the text",
            expected=f"fewer, of {longest}",
            do="shorten the prompt and the labels, or raise max_length",
        )
    return text_ids(tokenizer, before + text, room) + question


def text_ids(tokenizer: Any, text: str, longest: int) -> list[int]:
    """Ids of a text with the special tokens that the tokenizer puts before it, at most `longest`."""
    ids = tokenizer(text, truncation=True, max_length=longest)["input_ids"]
    return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids


def answer_ids(tokenizer: Any, template: str, answer: str) -> list[int]:
    """Ids of an answer as it stands behind the template's question, and the end token."""
    question = template.partition("{text}")[2].removesuffix("{label}")
    before = question.rstrip() or "."  # what a word follows decides its first token
    space = question[len(question.rstrip()) :]
    together, alone = _ids(tokenizer, before + space + answer), _ids(tokenizer, before)
    joined = together[: len(alone)] == alone
    ids = together[len(alone) :] if joined else _ids(tokenizer, space + answer)
    return [*ids, tokenizer.eos_token_id]


def padded(
    sequences: Sequence[Sequence[int]], tokenizer: Any, device: torch.device | str, left: bool = False
) -> dict[str, Tensor]:
    """A batch of sequences, with a mask and with positions that do not depend on the padding's side."""
    longest = max(len(ids) for ids in sequences)
    inputs = torch.full((len(sequences), longest), tokenizer.pad_token_id)
    mask = torch.zeros_like(inputs)
    for row, ids in enumerate(sequences):
        place = slice(longest - len(ids), None) if left else slice(len(ids))
        inputs[row, place] = torch.tensor(ids)
        mask[row, place] = 1
    batch = {"input_ids": inputs, "attention_mask": mask, "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)}
    return {name: value.to(device) for name, value in batch.items()}


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
