"""Joint tuning of router and experts on the union of the proxies (MetaMoE, stage 3), kept only where it helps.

loss = task loss on the proxies + routing_loss_weight · owner-supervised routing loss + balance_loss_weight · Switch.
The supervised loss works on detached router inputs: flowing back into the experts it cost 7 points (METHODS §4).
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from collegium.core.recipe import JointTuningSettings
from collegium.models.encoder import model_inputs
from collegium.models.fit import fit
from collegium.moe.losses import load_balancing_loss, owner_routing_loss
from collegium.unify.proxies import ProxySet


def jointly_tuned(model: Any, proxies: ProxySet, settings: JointTuningSettings, random_seed: int) -> Any:
    """A tuned copy of a unified model; the model itself is left as it is."""
    tuned = copy.deepcopy(model)
    tuned.requires_grad_(False)
    for router in tuned.routers.values():
        router.weight.requires_grad_(True)
        # a router without any bias (a centre is one) stays so: other programs' routers have none (`export`)
        router.bias.requires_grad_(bool(router.bias.any() or router.centre.any()))
        router.context_weight.requires_grad_(tuned.config.learn_context_weight)
    if settings.parameters == "router-and-experts":
        for name, parameter in tuned.named_parameters():
            parameter.requires_grad_(parameter.requires_grad or _is_owners_expert(name, tuned))

    def collate(rows: list[int]) -> dict[str, Tensor]:
        return {**proxies.exercises.collate(rows), "owners": torch.from_numpy(proxies.owners[rows])}

    def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        output = module(**model_inputs(batch), output_routing=True)
        total = proxies.exercises.loss(output, batch)
        mask = batch["attention_mask"] if "attention_mask" in batch else _every_token(output)
        routings = list(output.routings.values())
        for routing in routings:
            scores = routing.supervised_logits[..., : batch["owners"].shape[1]]  # a fallback owns no proxies
            total = total + settings.routing_loss_weight / len(routings) * owner_routing_loss(
                scores, batch["owners"], mask
            )
            if settings.balance_loss_weight:
                total = total + settings.balance_loss_weight / len(routings) * load_balancing_loss(
                    routing.logits, routing.experts, mask
                )
        return total

    fit(tuned, len(proxies), collate, loss, settings, random_seed, "tune router and experts")
    for router in tuned.routers.values():
        router.context_weight.data.clamp_(0.0, 1.0)
    return tuned.eval().requires_grad_(False)


def _every_token(output: Any) -> Tensor:
    """The mask of pictures, which have no padding."""
    hidden = output.last_hidden_state
    return torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)


def _is_owners_expert(name: str, model: Any) -> bool:
    """Whether a parameter belongs to an owner's expert; the seed's own FFN stays as it is."""
    _, found, after = name.partition(".experts.")
    return bool(found) and int(after.split(".")[0]) < len(model.config.expert_names)
