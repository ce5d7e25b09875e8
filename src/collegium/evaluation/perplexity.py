"""Perplexity of a decoder on the texts of a domain (task causal-text): exp of the mean loss of a token.

Every token but the first of a text counts once, over all texts of the domain, so that a long text counts for more.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from collegium.core.errors import RunError
from collegium.data.items import Item
from collegium.models.encoder import Encoder, Watch
from collegium.models.prompts import padded, text_ids

TEXTS_AT_A_TIME = 16  # of their logits, the whole vocabulary is in memory


def perplexity(encoder: Encoder, texts: Sequence[Item], watch: Watch | None = None) -> float:
    """Perplexity over all texts, each cut at the model's longest input.

    Args:
        encoder: a decoder with its head.
        watch: is told the routing of every batch of a unified model.

    Raises:
        RunError: no text has a second token, or the loss is not a number.
    """
    ids = [text_ids(encoder.tokenizer, str(text), encoder.max_length) for text in texts]
    order = sorted(range(len(ids)), key=lambda row: (len(ids[row]), row))
    losses, tokens = 0.0, 0
    for start in range(0, len(order), TEXTS_AT_A_TIME):
        rows = order[start : start + TEXTS_AT_A_TIME]
        given = padded([ids[row] for row in rows], encoder.tokenizer, encoder.model.device)
        with torch.inference_mode():
            output = encoder.model(**given, **({} if watch is None else {"output_routing": True}))
            likely = output.logits[:, :-1].float().log_softmax(dim=-1)  # [texts, tokens - 1, vocabulary]
        if watch is not None:
            watch(rows, output.routings, given["attention_mask"])
        taken = likely.gather(2, given["input_ids"][:, 1:].unsqueeze(2)).squeeze(2)
        counted = given["attention_mask"][:, 1:].bool()
        losses -= float(taken[counted].double().sum())
        tokens += int(counted.sum())
    if tokens == 0 or not math.isfinite(losses):
        raise RunError(
            "No perplexity can be given.",
            got="texts of one token alone" if tokens == 0 else "a loss that is not a number",
            do="give longer texts, or check the model's weights",
        )
    return math.exp(min(losses / tokens, 700.0))


def macro_average(by_domain: dict[str, float]) -> dict[str, float]:
    """With the geometric mean over domains under `mean`: the exponential of their mean loss."""
    return {**by_domain, "mean": float(np.exp(np.mean(np.log(list(by_domain.values())))))}
