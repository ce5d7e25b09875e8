"""Federated averaging of the FFNs (McMahan et al. 2017, arXiv:1602.05629), simulated without a network.

Every round all owners train the same dense model on their own examples, and their FFNs are averaged, weighted by the
number of examples. The budget is that of the experts: an owner's steps are parted among the rounds, and the learning
rate falls from round to round as it would from step to step. It is no one-shot method: the owners meet ROUNDS times,
and every update that leaves them tells something about their data.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from collegium.core.random_streams import stream_seed
from collegium.core.recipe import TrainingSettings
from collegium.data.examples import Examples
from collegium.models.expert_tensors import dense_model, full_expert
from collegium.models.tasks import Classes, ClassSet
from collegium.owner.exercises import private_exercises
from collegium.owner.training import train_expert
from collegium.unify.baselines.soup import soup
from collegium.unify.routed_model import Ingredients

ROUNDS = 6


def fedavg(
    ingredients: Ingredients, classes: Classes, private: Mapping[str, Examples]
) -> tuple[dict[str, Tensor], Classes]:
    """FFN tensors of the averaged model and the classes that it answers by.

    Of LoRA updates the full matrices are averaged, each round's factors merged. With a head all rows are trained by
    everybody and averaged too.

    Args:
        classes: as training finds them: with a head, the rows that owners began with.
        private: training examples of every owner.
    """
    charter, seed = ingredients.charter, ingredients.seed
    owners = [one.owner for one in ingredients.contributions]
    total = sum(len(private[owner]) for owner in owners)
    weights = [len(private[owner]) / total for owner in owners]
    layers = charter.trained_layers(seed.num_layers)
    rows = len(classes.public().names) if charter.terms.task == "label-head" else 0
    tensors: dict[str, Tensor] = {}
    rounds = [_rounds(charter.terms.training, number) for number in _exercises(ingredients, private)]
    for number, budgets in enumerate(zip(*rounds, strict=True)):
        start = replace(seed, model=dense_model(seed, tensors).model) if tensors else seed
        updates, heads = [], []
        for owner, settings in zip(owners, budgets, strict=True):
            exercises = private_exercises(charter, owner, seed, private[owner], classes)
            own_seed = stream_seed(charter.terms.random_seed, "fedavg", owner, str(number))
            update = train_expert(start, exercises, settings, layers, own_seed, head_rows=rows)
            updates.append(full_expert(start, update.tensors, settings))
            heads.append(update.head)
        tensors = soup(updates, weights)
        if rows and isinstance(classes, ClassSet):
            head = torch.nn.functional.normalize(torch.tensordot(torch.tensor(weights), torch.stack(heads), 1), dim=-1)
            classes = replace(classes, embeddings=torch.cat([head, classes.embeddings[rows:]]))
    return tensors, classes


def _exercises(ingredients: Ingredients, private: Mapping[str, Examples]) -> list[int]:
    """On how many private examples and proxies each owner's expert was trained."""
    alignment = ingredients.charter.terms.training.alignment
    proxies = ingredients.proxies.owners.sum(axis=0).astype(int).tolist() if alignment != "private" else None
    own = [len(private[one.owner]) if alignment != "proxy" else 0 for one in ingredients.contributions]
    return own if proxies is None else [a + b for a, b in zip(own, proxies, strict=True)]


def _rounds(training: TrainingSettings, exercises: int) -> list[TrainingSettings]:
    """The settings of every round: together the steps of an expert of so many exercises; of very few, one a round."""
    steps = training.steps or (training.epochs or 1) * -(-exercises // training.batch_size)
    parts = [max(1, steps // ROUNDS + (number < steps % ROUNDS)) for number in range(ROUNDS)]
    falling = training.schedule == "linear"
    return [
        training.model_copy(
            update={
                "steps": part,
                "epochs": None,
                "warmup_steps": 0,
                "schedule": "constant",
                "learning_rate": training.learning_rate * (1 - number / ROUNDS if falling else 1),
            }
        )
        for number, part in enumerate(parts)
    ]
