"""Averages of the experts' weights.

soup              the uniform average (Wortsman et al. 2022, arXiv:2203.05482)
searched soup     a weight for each expert, chosen on the proxies that joint tuning would use
task arithmetic   seed + λ Σ (expert − seed), λ chosen in the same way (Ilharco et al. 2023, arXiv:2212.04089)

The search is over a few candidates, all judged on the same proxies, so that it costs passes and no training; the
uniform average is among them and wins a tie. Cost: O(candidates · proxies).
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from collegium.core.random_streams import stream
from collegium.models.expert_tensors import dense_model, ffn_tensors, materialised
from collegium.unify.proxies import proxy_accuracy
from collegium.unify.routed_model import Ingredients

CANDIDATES = 16  # weightings that are tried, the uniform one among them
SCALES = (0.2, 0.4, 0.6, 0.8, 1.0)  # λ of task arithmetic


def soup(experts: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Average tensors of the same name.

    Args:
        experts: full FFN tensors, at least one.
        weights: of each expert, summing to 1; None = all alike.
    """
    if weights is None:
        return {name: torch.stack([expert[name] for expert in experts]).mean(dim=0) for name in experts[0]}
    shares = torch.tensor(weights, dtype=torch.float32)
    return {name: torch.tensordot(shares, torch.stack([e[name] for e in experts]), dims=1) for name in experts[0]}


def searched_soup(ingredients: Ingredients) -> tuple[dict[str, Tensor], list[float]]:
    """The average that answers the training proxies best, and its weights."""
    experts = [materialised(ingredients.seed, tensors) for tensors in ingredients.experts.values()]
    random = stream(ingredients.charter.terms.random_seed, "soup")
    drawn = random.dirichlet(np.ones(len(experts)), size=CANDIDATES - 1)
    weightings = [[1 / len(experts)] * len(experts), *drawn.tolist()]
    return _best(ingredients, ((soup(experts, weights), weights) for weights in weightings))


def task_arithmetic(ingredients: Ingredients) -> tuple[dict[str, Tensor], list[float]]:
    """The sum of the experts' changes, scaled by the λ with which the training proxies are answered best, and λ."""
    experts = [materialised(ingredients.seed, tensors) for tensors in ingredients.experts.values()]
    own = ffn_tensors(ingredients.seed, sorted({int(name.split(".")[1]) for name in experts[0]}))

    def summed(scale: float) -> dict[str, Tensor]:
        return {
            name: tensor + scale * torch.stack([expert[name] - tensor for expert in experts]).sum(dim=0)
            for name, tensor in own.items()
        }

    return _best(ingredients, ((summed(scale), [scale]) for scale in SCALES))


def _best(
    ingredients: Ingredients, candidates: Iterable[tuple[dict[str, Tensor], list[float]]]
) -> tuple[dict[str, Tensor], list[float]]:
    """The candidate with the most right answers to the training proxies; the first of several."""
    best, most = None, -1.0
    for tensors, setting in candidates:
        accuracy = proxy_accuracy(dense_model(ingredients.seed, tensors).model, ingredients.proxies) or 0.0
        if accuracy > most:
            best, most = (tensors, setting), accuracy
    assert best is not None
    return best
