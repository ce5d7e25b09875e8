"""Losses on router scores: the owner-supervised one (ours) and load balancing (Switch). Padding never counts."""

import torch
from torch import Tensor


def owner_routing_loss(logits: Tensor, owners: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy between the router's distribution and the owners who chose the item.

    Args:
        logits: scores, from detached router inputs (otherwise the loss bends the experts); [items, tokens, experts].
        owners: 1 where an owner chose the item, any number of them; rows need not sum to 1; [items, experts].
        mask: 1 = token, 0 = padding; [items, tokens].
    """
    targets = owners / owners.sum(dim=-1, keepdim=True)
    per_token = -(logits.log_softmax(dim=-1) * targets.unsqueeze(1)).sum(dim=-1)  # [items, tokens]
    weights = mask.to(per_token.dtype) / mask.sum(dim=-1, keepdim=True)
    return (per_token * weights).sum(dim=-1).mean()


def load_balancing_loss(logits: Tensor, experts: Tensor, mask: Tensor) -> Tensor:
    """Switch Transformer, eq. 4 (arXiv:2101.03961): 1 where tokens spread evenly, the number of experts at worst.

    Args:
        logits: scores; [items, tokens, experts].
        experts: chosen experts; [items, tokens, experts_per_token]; an index beyond the scores is the seed's FFN in a
            warm-up: nobody routed that token, and it does not count.
        mask: 1 = token, 0 = padding; [items, tokens].
    """
    num_experts = logits.shape[-1]
    tokens = mask.bool() & (experts[..., 0] < num_experts)
    probabilities = logits.softmax(dim=-1)[tokens]  # [real tokens, experts]
    chosen = torch.nn.functional.one_hot(experts[tokens], num_experts).float()  # [real tokens, k, experts]
    return num_experts * (chosen.mean(dim=(0, 1)) * probabilities.mean(dim=0)).sum()
