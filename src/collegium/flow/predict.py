"""Answers of a unified model for new texts: class, probability, and the experts that were used."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from collegium.core.errors import InputError
from collegium.evaluation.routing import route_texts
from collegium.unify.unified_folder import UnifiedModel

CHUNK = 512  # texts answered at a time


def predict_texts(unified: UnifiedModel, texts: Sequence[str], domain: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield one answer for each text, in order: text, domain, label, probability, experts (name → share of tokens).

    Args:
        domain: let only this owner's class names compete; None = all.

    Raises:
        InputError: the model carries no class names of that owner.
    """
    classes = unified.classes
    competing = list(range(len(classes.names))) if domain is None else classes.of(domain)
    if not competing:
        raise InputError(
            "The model carries no class names of this owner.", got=domain, expected=", ".join(classes.domains)
        )
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        embeddings, tokens = route_texts(unified.encoder, chunk, 64)
        logits = torch.from_numpy(embeddings) @ classes.embeddings[competing].T * unified.facts["logit_scale"]
        best = logits.softmax(dim=-1).max(dim=-1)
        used = np.sum(list(tokens.values()), axis=0)
        for row, text in enumerate(chunk):
            owner, label = classes.names[competing[int(best.indices[row])]]
            shares = used[row] / used[row].sum()
            experts = zip(unified.experts, shares.tolist(), strict=True)
            yield {
                "text": text,
                "domain": owner,
                "label": label,
                "probability": float(best.values[row]),
                "experts": {name: round(share, 4) for name, share in experts if share > 0},
            }
