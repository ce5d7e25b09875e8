"""Which expert a unified model sends a domain's texts to, layer by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int

from collegium.core.shapes import TokenMask
from collegium.evaluation.evaluate import Correct, Domain, answer
from collegium.models.encoder import Encoder
from collegium.models.tasks import Classes
from collegium.moe.router import Routing


@dataclass(frozen=True)
class Routes:
    """The way that a domain's texts took through a unified model.

    Attributes:
        shares: layer → share of the domain's tokens that each expert got; [experts].
        used: the most used expert of every text, counting the routed tokens of all layers but those of a warm-up;
            [items].
    """

    shares: dict[int, Float64[np.ndarray, " experts"]]
    used: Int[np.ndarray, " items"]


def evaluate_routed(
    encoder: Encoder, domains: Sequence[Domain], classes: Classes, batch_size: int
) -> tuple[dict[str, Correct], dict[str, Routes]]:
    """Answer every text with a unified model and record the routing; domain → answers, domain → routes."""
    correct, routes = {}, {}
    for domain in domains:
        watch = RoutedTokens(encoder, len(domain.texts))
        correct[domain.name] = answer(encoder, domain, classes, batch_size, watch)
        routes[domain.name] = watch.routes()
    return correct, routes


def sequence_routing(routes: Mapping[str, Routes], experts: Sequence[str]) -> float | None:
    """Share of texts whose most used expert is their own domain's, macro average over domains that have one."""
    rates = [float((found.used == experts.index(name)).mean()) for name, found in routes.items() if name in experts]
    return float(np.mean(rates)) if rates else None


class RoutedTokens:
    """Counts, batch by batch, how many tokens of each item every expert got at every layer (a `Watch`).

    Attributes:
        tokens: layer → [items, experts].
    """

    def __init__(self, encoder: Encoder, num_items: int):
        self.num_experts = len(encoder.model.config.choices)
        self.num_candidates = len(encoder.model.config.candidates)
        self.tokens = {layer: np.zeros((num_items, self.num_experts)) for layer in encoder.model.routers}

    def __call__(self, rows: list[int], routings: dict[int, Routing], mask: TokenMask) -> None:
        for layer, routing in routings.items():
            chosen = torch.nn.functional.one_hot(routing.experts, self.num_experts).sum(dim=2)
            self.tokens[layer][rows] += (chosen * mask.unsqueeze(-1)).sum(dim=1).cpu().numpy()

    def totals(self) -> Float64[np.ndarray, "items experts"]:
        """Over all layers."""
        return np.sum(list(self.tokens.values()), axis=0)

    def routes(self) -> Routes:
        rates = {layer: counts / counts.sum(axis=1, keepdims=True) for layer, counts in self.tokens.items()}
        routed = self.totals()[:, : self.num_candidates]  # in a warm-up nothing was decided
        return Routes({layer: rate.mean(axis=0) for layer, rate in rates.items()}, routed.argmax(axis=1))
