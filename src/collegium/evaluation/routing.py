"""Which expert a unified model sends a domain's texts to, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int

from collegium.data.items import Item
from collegium.evaluation.evaluate import Correct, Domain, grade
from collegium.models.encoder import Encoder, batches_by_length, pool_tokens, token_mask
from collegium.models.tasks import ClassSet


@dataclass(frozen=True)
class RoutedAnswers:
    """Answers of a unified model and the way they took.

    Attributes:
        shares: layer → share of the domain's tokens that each expert got; [experts].
        used: the most used expert of every text, counting the routed tokens of all layers; [items].
    """

    correct: Correct
    shares: dict[int, Float64[np.ndarray, " experts"]]
    used: Int[np.ndarray, " items"]


def evaluate_routed(
    encoder: Encoder, domains: Sequence[Domain], classes: ClassSet, batch_size: int
) -> dict[str, RoutedAnswers]:
    """Answer every text with a unified model and record the routing; domain → answers."""
    return {domain.name: _route(encoder, domain, classes, batch_size) for domain in domains}


def sequence_routing(answers: dict[str, RoutedAnswers], experts: Sequence[str]) -> float | None:
    """Share of texts whose most used expert is their own domain's, macro average over domains that have one."""
    rates = [float((routed.used == experts.index(name)).mean()) for name, routed in answers.items() if name in experts]
    return float(np.mean(rates)) if rates else None


def route_texts(encoder: Encoder, texts: Sequence[Item], batch_size: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Embeddings of the texts, and layer → tokens that each expert got for each text; [items, experts]."""
    num_experts = len(encoder.model.config.choices)
    embeddings = np.empty((len(texts), encoder.model.config.hidden_size), dtype=np.float32)
    tokens = {layer: np.zeros((len(texts), num_experts)) for layer in encoder.model.routers}
    with torch.inference_mode():
        for rows, inputs in batches_by_length(encoder, texts, batch_size):
            output = encoder.model(**inputs, output_routing=True)
            mask = token_mask(inputs, output.last_hidden_state)
            embeddings[rows] = pool_tokens(output.last_hidden_state, mask, encoder.pooling).cpu().numpy()
            for layer, routing in output.routings.items():
                chosen = torch.nn.functional.one_hot(routing.experts, num_experts).sum(
                    dim=2
                )  # [items, tokens, experts]
                tokens[layer][rows] = (chosen * mask.unsqueeze(-1)).sum(dim=1).cpu().numpy()
    return embeddings, tokens


def _route(encoder: Encoder, domain: Domain, classes: ClassSet, batch_size: int) -> RoutedAnswers:
    embeddings, tokens = route_texts(encoder, domain.texts, batch_size)
    shares = {}
    for layer, counts in tokens.items():
        rates = counts / counts.sum(axis=1, keepdims=True)
        shares[layer] = rates.mean(axis=0)
    used = np.sum(list(tokens.values()), axis=0).argmax(axis=1)
    return RoutedAnswers(grade(embeddings, domain, classes), shares, used)
