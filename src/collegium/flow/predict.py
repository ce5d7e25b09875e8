"""Answers of a unified model for new texts or pictures: class, probability, and the experts that were used."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from collegium.core.errors import InputError
from collegium.data.items import Item
from collegium.evaluation.routing import RoutedTokens
from collegium.models.choices import choice_log_likelihoods
from collegium.models.encoder import check_modality
from collegium.unify.unified_folder import UnifiedModel

CHUNK = 512  # items answered at a time


def predict_items(
    unified: UnifiedModel,
    items: Sequence[Item],
    places: Sequence[int | str],
    domain: str | None = None,
    choices: Sequence[Sequence[str]] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one answer for each item, in order: text (or image: its place), domain, label, probability, experts.

    `experts` maps a name to its share of the tokens.

    Args:
        places: where each item stands, which names a picture in its answer.
        domain: let only this owner's class names compete; None = all. With `choices`, the owner whose prompt asks.
        choices: answers that compete for each item, instead of class names.

    Raises:
        InputError: the model carries no class names of that owner; choices for a model that compares class names, or
            without an owner whose prompt is meant.
        DataError: texts for a model that reads pictures, or pictures for one that reads texts.
    """
    check_modality(unified.encoder, items, "question")
    if unified.facts["task"] == "causal-text":
        raise InputError(
            "A model of task causal-text answers with text, not with a class.",
            do="use it as any decoder: `transformers serve`, or AutoModelForCausalLM and generate",
        )
    if choices is not None:
        yield from _predict_choices(unified, items, choices, domain)
        return
    classes = unified.classes
    competing = list(range(len(classes.names))) if domain is None else classes.of(domain)
    if not competing:
        raise InputError(
            "The model carries no class names" + (" of this owner." if domain else "."),
            got=domain,
            expected=", ".join(classes.domains) or None,
            do="where examples have choices of their own, name their column: --choices" if not classes.names else None,
        )
    for start in range(0, len(items), CHUNK):
        chunk = items[start : start + CHUNK]
        watch = RoutedTokens(unified.encoder, len(chunk))
        logits = torch.from_numpy(classes.logits(unified.encoder, chunk, 64, watch)[:, competing])
        best = logits.softmax(dim=-1).max(dim=-1)
        used = _experts(unified, watch)
        for row, item in enumerate(chunk):
            owner, label = classes.names[competing[int(best.indices[row])]]
            yield {
                **({"text": item} if isinstance(item, str) else {"image": places[start + row]}),
                "domain": owner,
                "label": label,
                "probability": float(best.values[row]),
                "experts": used[row],
            }


def _predict_choices(
    unified: UnifiedModel, items: Sequence[Item], choices: Sequence[Sequence[str]], domain: str | None
) -> Iterator[dict[str, Any]]:
    prompts: dict[str, str] = unified.facts["prompts"]
    if unified.facts["task"] != "causal-choice":
        raise InputError("Choices are for a decoder.", got=unified.facts["task"], expected="a model of causal-choice")
    if domain is not None and domain not in prompts:
        raise InputError("The model has no such owner.", got=domain, expected=", ".join(prompts))
    asked = set(prompts.values()) if domain is None else {prompts[domain]}
    if len(asked) > 1:
        raise InputError(
            "The owners ask by different prompts.", expected="one of " + ", ".join(prompts), do="name it: --domain"
        )
    template = asked.pop()
    for start in range(0, len(items), CHUNK):
        chunk = items[start : start + CHUNK]
        watch = RoutedTokens(unified.encoder, len(chunk))
        found = choice_log_likelihoods(unified.encoder, template, chunk, choices[start : start + CHUNK], watch)
        used = _experts(unified, watch)
        for row, item in enumerate(chunk):
            best = torch.from_numpy(found[row]).softmax(dim=-1).max(dim=-1)
            yield {
                "text": item,
                "domain": domain,
                "label": choices[start + row][int(best.indices)],
                "probability": float(best.values),
                "experts": used[row],
            }


def _experts(unified: UnifiedModel, watch: RoutedTokens) -> list[dict[str, float]]:
    """Shares of each item's tokens."""
    totals = watch.totals()
    shares = (totals / totals.sum(axis=1, keepdims=True)).tolist()
    return [
        {name: round(share, 4) for name, share in zip(unified.experts, row, strict=True) if share > 0} for row in shares
    ]
