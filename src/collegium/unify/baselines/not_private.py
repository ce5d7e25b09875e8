"""What would be possible if the data could be brought together: references, and nothing private.

BTX     Branch-Train-MiX (Sukhbaatar et al. 2024, arXiv:2403.07816): the same experts in the same mixture, router and
        experts tuned on the owners' private examples, whose owner is known to the router
pooled  one dense model, trained on all private examples together for as many steps as all owners took
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from collegium.core.random_streams import stream_seed
from collegium.data.examples import Examples
from collegium.models.exercises import Exercises
from collegium.models.expert_tensors import scaled_expert
from collegium.models.tasks import Classes, ClassSet
from collegium.owner.exercises import private_exercises
from collegium.owner.training import train_expert
from collegium.unify.joint_tuning import jointly_tuned
from collegium.unify.proxies import ProxySet
from collegium.unify.routed_model import Ingredients, routed_model


def btx(ingredients: Ingredients, private: Mapping[str, Examples]) -> Any:
    """The unified model, tuned on private examples for the epochs of joint tuning.

    Args:
        private: training examples of every owner.
    """
    terms = ingredients.charter.terms
    model, _ = routed_model(ingredients)
    owners = [one.owner for one in ingredients.contributions]
    of = np.concatenate([np.full(len(private[owner]), index) for index, owner in enumerate(owners)])
    together = ProxySet(_together(ingredients, ingredients.classes, private), np.eye(len(owners), dtype=np.float32)[of])
    return jointly_tuned(model, together, terms.joint_tuning, stream_seed(terms.random_seed, "btx"))


def pooled(
    ingredients: Ingredients, classes: Classes, private: Mapping[str, Examples]
) -> tuple[dict[str, Tensor], Classes]:
    """FFN tensors of one dense model and the classes that it answers by; its budget is that of all owners, in steps.

    Args:
        classes: as training finds them: with a head, the rows that owners began with.
        private: training examples of every owner.
    """
    charter, seed = ingredients.charter, ingredients.seed
    training, owners = charter.terms.training, len(ingredients.contributions)
    budget = training.steps and training.steps * owners
    head_rows = len(classes.public().names) if charter.terms.task == "label-head" else 0
    expert = train_expert(
        seed,
        _together(ingredients, classes, private),
        training.model_copy(update={"steps": budget}),
        charter.trained_layers(seed.num_layers),
        stream_seed(charter.terms.random_seed, "pooled"),
        head_rows=head_rows,
    )
    if isinstance(classes, ClassSet) and expert.head is not None:
        classes = replace(classes, embeddings=torch.cat([expert.head, classes.embeddings[head_rows:]]))
    return scaled_expert(expert.tensors, training), classes


def _together(ingredients: Ingredients, classes: Classes, private: Mapping[str, Examples]) -> Exercises:
    parts = [
        private_exercises(ingredients.charter, one.owner, ingredients.seed, private[one.owner], classes)
        for one in ingredients.contributions
    ]
    return reduce(add, parts)
