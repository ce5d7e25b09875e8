"""Splits, de-duplicates and samples examples; the same random seed gives the same answer on every machine.

Everything is stratified: each class keeps its share; examples with choices of their own have no classes. A text that
stands in two splits would be learnt in one and asked in the other, so it is dropped from the later one; texts are
compared with their white space normalised.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from collegium.data.items import normalised
from collegium.data.rows import Examples

SHARES = {"test": 0.20, "validation": 0.15}  # of the examples that are there when nothing is split yet


def carve(examples: Examples, names: Sequence[str], random: np.random.Generator) -> dict[str, Examples]:
    """Take the splits `names` (of `SHARES`) out of `examples`; what is left is `train`.

    A class with fewer examples than there are splits stays in `train` as a whole, and any other class is in
    every split.
    """
    chosen: dict[str, list[int]] = {name: [] for name in [*names, "train"]}
    for members in _by_class(examples):
        order = [members[i] for i in random.permutation(len(members))]
        for name in names:
            size = _rounded(SHARES[name] * len(members)) if len(members) > len(names) else 0
            chosen[name] += order[:size]
            order = order[size:]
        chosen["train"] += order
    return {name: examples.take(sorted(indices)) for name, indices in chosen.items()}


def sample(examples: Examples, limit: int | None, random: np.random.Generator) -> Examples:
    """At most `limit` examples in their old order, with the shares of the classes kept.

    Every class is there as long as `limit` is not below the number of classes; below it, classes are left to chance
    (labels may be answers, nearly all different). None = all.
    """
    if limit is None or limit >= len(examples):
        return examples
    classes = _by_class(examples)
    if limit < len(classes):
        return examples.take(sorted(random.permutation(len(examples))[:limit].tolist()))
    ranked: list[tuple[bool, float, int]] = []
    for members in classes:
        order = random.permutation(len(members))
        # Ordered by its relative rank in its class, any beginning of the list holds each class at its share.
        ranked += [(rank > 0, (rank + 0.5) / len(members), members[i]) for rank, i in enumerate(order)]
    ranked.sort(key=lambda entry: entry[:2])
    return examples.take(sorted(index for _, _, index in ranked[:limit]))


def drop_duplicates(splits: dict[str, Examples]) -> dict[str, Examples]:
    """Drop from each split the texts that stand in an earlier one. Repetitions inside a split stay."""
    seen: set[str] = set()
    kept: dict[str, Examples] = {}
    for name, examples in splits.items():
        texts = [normalised(text) for text in examples.texts]
        kept[name] = examples.take([i for i, text in enumerate(texts) if text not in seen])
        seen.update(texts)
    return kept


def _by_class(examples: Examples) -> list[list[int]]:
    """Indices of the examples of each class, in the order of the class names; without class names, one class."""
    members: dict[str, list[int]] = defaultdict(list)
    labels = examples.labels if examples.choices is None else None
    for index, label in enumerate(labels or [""] * len(examples)):
        members[label].append(index)
    return [members[label] for label in sorted(members)]


def _rounded(size: float) -> int:
    return max(1, int(size + 0.5))
