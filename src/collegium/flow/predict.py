"""Answers of a unified model for new texts or pictures: class, probability, and the experts that were used."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from collegium.core.errors import InputError
from collegium.data.items import Item
from collegium.evaluation.routing import RoutedTokens
from collegium.models.encoder import check_modality
from collegium.unify.unified_folder import UnifiedModel

CHUNK = 512  # items answered at a time


def predict_items(
    unified: UnifiedModel, items: Sequence[Item], places: Sequence[int | str], domain: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield one answer for each item, in order: text (or image: its place), domain, label, probability, experts.

    `experts` maps a name to its share of the tokens.

    Args:
        places: where each item stands, which names a picture in its answer.
        domain: let only this owner's class names compete; None = all.

    Raises:
        InputError: the model carries no class names of that owner.
        DataError: texts for a model that reads pictures, or pictures for one that reads texts.
    """
    check_modality(unified.encoder, items, "question")
    if unified.facts["task"] == "causal-text":
        raise InputError(
            "A model of task causal-text answers with text, not with a class.",
            do="use it as any decoder: `transformers serve`, or AutoModelForCausalLM and generate",
        )
    classes = unified.classes
    competing = list(range(len(classes.names))) if domain is None else classes.of(domain)
    if not competing:
        raise InputError(
            "The model carries no class names of this owner.", got=domain, expected=", ".join(classes.domains)
        )
    for start in range(0, len(items), CHUNK):
        chunk = items[start : start + CHUNK]
        watch = RoutedTokens(unified.encoder, len(chunk))
        logits = torch.from_numpy(classes.logits(unified.encoder, chunk, 64, watch)[:, competing])
        best = logits.softmax(dim=-1).max(dim=-1)
        used = watch.totals()
        for row, item in enumerate(chunk):
            owner, label = classes.names[competing[int(best.indices[row])]]
            shares = used[row] / used[row].sum()
            experts = zip(unified.experts, shares.tolist(), strict=True)
            yield {
                **({"text": item} if isinstance(item, str) else {"image": places[start + row]}),
                "domain": owner,
                "label": label,
                "probability": float(best.values[row]),
                "experts": {name: round(share, 4) for name, share in experts if share > 0},
            }
