"""Model Soup: the uniform average of the experts' weights (Wortsman et al. 2022, arXiv:2203.05482)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def soup(experts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average tensors of the same name.

    Args:
        experts: full FFN tensors, at least one.
    """
    return {name: torch.stack([expert[name] for expert in experts]).mean(dim=0) for name in experts[0]}
