"""What private examples and items of the pool teach under a charter, for every task."""

from collections.abc import Sequence

import numpy as np

from collegium.data.examples import Examples
from collegium.models.causal_exercises import answered, whole_texts
from collegium.models.exercises import Exercises
from collegium.models.label_exercises import LabelExercises, label_targets, proxy_targets
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import Classes, ClassSet
from collegium.owner.charter import POOL_DOMAIN, Charter
from collegium.selection.pool import Pool


def private_exercises(charter: Charter, owner: str, seed: SeedModel, private: Examples, classes: Classes) -> Exercises:
    """An owner's own examples: their labels among the classes that compete, their right answers, or their texts."""
    terms, labels = charter.terms, private.labels or []
    if terms.task == "causal-text":
        return whole_texts(seed, private.texts, distilled=False)
    if not isinstance(classes, ClassSet):
        return answered(seed, terms.owners[owner].prompt, private.texts, labels)
    competing = list(range(len(classes.names))) if terms.training.labels == "union" else classes.of(owner)
    if terms.task == "label-matching":  # with a head, the anchors are what own rows compete with
        competing = [index for index in competing if classes.names[index][0] != POOL_DOMAIN]
    targets = label_targets([classes.index(owner, label) for label in labels], competing, classes)
    return LabelExercises(seed, private.texts, targets, classes)


def proxy_exercises(charter: Charter, seed: SeedModel, pool: Pool, rows: Sequence[int], classes: Classes) -> Exercises:
    """Some items of the pool: its labels or answers where the charter prompts them, otherwise what the seed says."""
    items, rows = pool.texts(rows), list(rows)
    labels = pool.labels_of(rows) if charter.terms.pool_prompt is not None else None
    if isinstance(classes, ClassSet):
        targets = proxy_targets(np.asarray(pool.embeddings[rows]), labels, classes, charter.pool_domain)
        return LabelExercises(seed, items, targets, classes)
    if labels is None or charter.terms.pool_prompt is None:
        return whole_texts(seed, items, distilled=True)
    return answered(seed, charter.terms.pool_prompt, items, labels)
