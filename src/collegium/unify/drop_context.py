"""Gives up what other programs' routers lack (context, centre, bias, reused decisions, warm-up), and measures the loss.

The exact model reads public texts. In each layer a router on the token alone learns, from the FFN inputs of that pass,
what the exact model decided for each token (`token_router`). Layers below the decision hold the seed's FFN, which every
expert gets a copy of, so that any router is exact there. A warm-up's seed FFN becomes one more expert, whose tokens the
router learns as it learns the owners'.

Both are then compared on held-out public texts, beside the plain way: the old rows on the token, without the rest.
Changing the input of each layer's router by what the layers below do otherwise is part of that measure, not of the fit.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from collegium.core.errors import InputError
from collegium.core.progress import progress_bar, say
from collegium.models.encoder import Encoder
from collegium.models.seed_model import load_tokenizer
from collegium.moe.layer import MoEFeedForward
from collegium.moe.router import Router, Routing
from collegium.selection.pool import Pool, is_held_out
from collegium.unify.export_source import ExportSource
from collegium.unify.export_targets import RouterValues
from collegium.unify.token_router import imitating_rows

HELD_OUT_ONE_IN = 10  # of the pool, by content hash: the charter's rule
TUNED_TOKENS, JUDGED_TOKENS = 30_000, 10_000
LONGEST = 256  # tokens kept of a text
BATCH = 8  # texts: the logits of a batch are its largest tensor
INPUT_BYTES = 2 << 30  # of FFN inputs in memory; layers that do not fit are taken in a further pass


@dataclass(frozen=True)
class Share:
    """Shares of held-out tokens that are treated as by the exact model.

    Attributes:
        dropped: with the old rows on the token alone.
        retuned: with the rows that are exported.
    """

    dropped: float
    retuned: float


@dataclass(frozen=True)
class Agreement:
    """How near a model without context is to the exact one, on public texts that it was not tuned on.

    Attributes:
        layers: layer → tokens whose first expert is the same; layers below the decision are the same anyway.
        experts: expert → the same over all layers, of the tokens that the exact model gives to it; None where it
            gives none to it.
        expert_shares: expert → share of the tokens, over all layers, that the exact model gives to it.
        next_token: tokens after which the most probable next token is the same.
    """

    tuned_tokens: int
    judged_tokens: int
    layers: dict[int, Share]
    experts: dict[str, Share | None]
    expert_shares: dict[str, float]
    next_token: Share

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["layers"] = {str(layer): share for layer, share in values["layers"].items()}
        return values


def without_context(source: ExportSource) -> ExportSource:
    """What the model becomes, its routers still at zero: a router in every layer, on the token alone."""
    config = copy.deepcopy(source.config)
    config.experts_per_token = min(config.experts_per_token, len(config.candidates))
    config.fallback = "seed" in config.choices
    config.decide, config.context, config.warmup_tokens = "every-layer", "token", 0
    rows = torch.zeros(len(config.choices), config.hidden_size)
    routers = [_plain(rows)] * config.num_hidden_layers
    return replace(source, config=config, routers=routers, dense_layers=source.config.first_moe_layer)


def dropping_obstacles(source: ExportSource) -> list[str]:
    """What no re-tuning helps; `source` is without context."""
    if source.config.weighting == "softmax" and source.dense_layers:
        return [
            "router.weighting = softmax with decide: once: below the decision the weights of copies of one FFN must "
            "sum to 1"
        ]
    return []


def retuned(source: ExportSource, pool: Pool) -> tuple[ExportSource, Agreement]:
    """The model without context, its routers tuned on the pool, and its agreement with the exact one.

    Raises:
        InputError: the pool holds no texts, or too few; the model's tokenizer is missing.
    """
    reader = _reader(source)
    texts = {held_out: _texts(reader, pool, held_out) for held_out in (False, True)}
    layers = [module.layer for module in _moe_layers(reader.model)]
    old = _old_rows(reader.model, layers)
    exact = _answers(reader, texts[True])
    rows: dict[int, Tensor] = {}
    with progress_bar("tune routers without context", len(layers)) as bar:
        for layer, inputs, targets in _decisions(reader, texts[False], layers):
            rows[layer] = torch.from_numpy(imitating_rows(inputs, targets)).float()
            bar.advance()
    without = {}
    for name, routers in (("dropped", old), ("retuned", rows)):
        route_by_token(reader.model, routers)
        without[name] = _answers(reader, texts[True])
    tuned_tokens = int(sum(_mask(reader, batch).sum() for batch in _batches(texts[False])))
    agreement = _agreement(source.config.choices, exact, without["dropped"], without["retuned"], tuned_tokens)
    for name, share in agreement.expert_shares.items():
        if share == 0.0:
            say(f"warning: no held-out text of the pool goes to {name}; nothing tells how its tokens are routed now")
    bare = without_context(source)
    routers = [_plain(rows[layer]) if layer in rows else bare.routers[layer] for layer in range(len(bare.routers))]
    return replace(bare, routers=routers), agreement


def route_by_token(model: Any, rows: Mapping[int, Tensor]) -> None:
    """Turn a loaded model into the one without context, in place; layer → the router's rows."""
    for module in _moe_layers(model):
        weight = rows[module.layer]
        router = Router(weight.shape[1], len(weight), _experts_per_token(model.config), model.config.weighting)
        router.weight.data = weight
        module.router, module.context, module.share_decision, module.warmup_tokens = router, "token", False, 0
    model.config.context = "token"  # the pass asks for it: `seed` runs the seed ahead
    model.requires_grad_(False)


@dataclass(frozen=True)
class _Answers:
    """Attributes: experts: layer → the first expert of every token; next_tokens: the most probable."""

    experts: dict[int, Int[np.ndarray, " tokens"]]
    next_tokens: Int[np.ndarray, " tokens"]


def _plain(rows: Float32[Tensor, "experts dim"]) -> RouterValues:
    return RouterValues(rows, torch.zeros(len(rows)), torch.zeros(rows.shape[1]), 0.0, 1.0)


def _experts_per_token(config: Any) -> int:
    return min(config.experts_per_token, len(config.candidates))


def _moe_layers(model: nn.Module) -> list[MoEFeedForward]:
    return [module for module in model.modules() if isinstance(module, MoEFeedForward)]


def _reader(source: ExportSource) -> Encoder:
    """The exact model with its tokenizer; the pooling is never used."""
    model = AutoModelForCausalLM.from_pretrained(
        source.path, trust_remote_code=False, use_safetensors=True, dtype="auto"
    )
    try:
        tokenizer = load_tokenizer(source.path, model)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{source.path} has no tokenizer, without which its routers cannot be tuned.",
            got=str(error).splitlines()[0],
        ) from None
    length = min(LONGEST, tokenizer.model_max_length, model.config.max_position_embeddings)
    return Encoder(model.eval().requires_grad_(False), tokenizer, "mean", length)


def _texts(reader: Encoder, pool: Pool, held_out: bool) -> list[str]:
    """Texts of the pool in the order of their hashes, until they have enough tokens."""
    rows = [row for row, value in enumerate(pool.hashes) if is_held_out(value, HELD_OUT_ONE_IN) == held_out]
    if pool.modality != "text" or not rows:
        raise InputError(
            f"The pool {pool.artifact.path} cannot tune the routers of a language model.",
            got=f"{len(pool)} {pool.modality} items, {len(rows)} of them {'held out' if held_out else 'to tune on'}",
            expected="some hundred texts or more, of which a tenth is held out",
        )
    texts, missing = [], JUDGED_TOKENS if held_out else TUNED_TOKENS
    for first in range(0, len(rows), BATCH):
        if missing <= 0:
            break
        batch = [text for text in pool.texts(rows[first : first + BATCH]) if isinstance(text, str)]
        missing -= int(_mask(reader, batch).sum())
        texts += batch
    return texts


def _batches(texts: Sequence[str]) -> list[Sequence[str]]:
    return [texts[first : first + BATCH] for first in range(0, len(texts), BATCH)]


def _mask(reader: Encoder, texts: Sequence[str]) -> Bool[np.ndarray, "items tokens"]:
    return reader.tokenise(texts)["attention_mask"].bool().cpu().numpy()


def _old_rows(model: Any, layers: Sequence[int]) -> dict[int, Tensor]:
    """Every layer's rows, or those of the layer whose decision it reuses; a warm-up's seed, which has none, gets 0."""
    rows, last = {}, torch.empty(0)
    for layer in layers:
        if layer in model.routers:
            router = model.routers[layer]
            last = (router.weight.double() / router.temperature.double()).float()
            extra = len(model.config.choices) - len(last)
            last = torch.cat([last, torch.zeros(extra, last.shape[1])])
        rows[layer] = last
    return rows


def _answers(reader: Encoder, texts: Sequence[str]) -> _Answers:
    experts: dict[int, list[np.ndarray]] = {module.layer: [] for module in _moe_layers(reader.model)}
    next_tokens = []
    for batch in _batches(texts):
        inputs = reader.tokenise(batch)
        with torch.inference_mode():
            output = reader.model(**inputs, use_cache=False, output_routing=True)
        real = inputs["attention_mask"].bool()
        next_tokens.append(output.logits.argmax(dim=-1)[real].cpu().numpy())
        for layer, routing in _reused(output.routings, experts):
            experts[layer].append(routing.experts[..., 0][real].cpu().numpy())
    return _Answers({layer: np.concatenate(parts) for layer, parts in experts.items()}, np.concatenate(next_tokens))


def _reused(
    routings: Mapping[int, Routing], layers: Sequence[int] | Mapping[int, Any]
) -> Iterator[tuple[int, Routing]]:
    """The routing of every layer, its own or the one that it reuses."""
    for layer in layers:
        yield layer, routings[max(deciding for deciding in routings if deciding <= layer)]


def _decisions(
    reader: Encoder, texts: Sequence[str], layers: Sequence[int]
) -> Iterator[tuple[int, Float32[np.ndarray, "tokens dim"], Float64[np.ndarray, "tokens experts"]]]:
    """Layer, its FFN inputs and what was decided for them, in the exact model's pass over the texts."""
    tokens = int(sum(_mask(reader, batch).sum() for batch in _batches(texts)))
    at_once = max(1, INPUT_BYTES // (4 * tokens * reader.model.config.hidden_size))
    for first in range(0, len(layers), at_once):
        part = layers[first : first + at_once]
        inputs: dict[int, list[np.ndarray]] = {layer: [] for layer in part}
        targets: dict[int, list[np.ndarray]] = {layer: [] for layer in part}
        for batch in _batches(texts):
            for layer, hidden, target in _pass(reader, batch, part):
                inputs[layer].append(hidden)
                targets[layer].append(target)
        for layer in part:
            yield layer, np.concatenate(inputs.pop(layer)), np.concatenate(targets.pop(layer))


def _pass(
    reader: Encoder, texts: Sequence[str], layers: Sequence[int]
) -> Iterator[tuple[int, Float32[np.ndarray, "tokens dim"], Float64[np.ndarray, "tokens experts"]]]:
    seen: dict[int, Tensor] = {}

    def record(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen[module.layer] = arguments[0]  # pyright: ignore[reportArgumentType] - the seed's pass, if any, comes first

    hooks = [m.register_forward_pre_hook(record) for m in _moe_layers(reader.model) if m.layer in layers]
    inputs = reader.tokenise(texts)
    try:
        with torch.inference_mode():
            # of the head, one token
            output = reader.model(**inputs, use_cache=False, output_routing=True, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    real = inputs["attention_mask"].bool()
    config = reader.model.config
    only_first = _experts_per_token(config) == 1 and config.weighting != "softmax"
    for layer, routing in _reused(output.routings, layers):
        target = _target(routing, len(config.choices), only_first)[real].cpu().numpy()
        yield layer, seen[layer][real].float().cpu().numpy(), target


def _target(routing: Routing, num_choices: int, only_first: bool) -> Tensor:
    """What a router must predict: the choice where only that matters, else the probabilities, whose sizes matter too.

    Returns:
        float64; [items, tokens, choices].
    """
    chosen = nn.functional.one_hot(routing.experts[..., 0], num_choices).double()
    if only_first:
        return chosen
    probabilities = routing.logits.double().softmax(dim=-1)
    soft = torch.zeros_like(chosen)
    soft[..., : probabilities.shape[-1]] = probabilities
    early = routing.experts[..., :1] >= probabilities.shape[-1]  # a warm-up's seed, which no router scored
    return torch.where(early, chosen, soft)


def _agreement(
    names: Sequence[str], exact: _Answers, dropped: _Answers, tuned: _Answers, tuned_tokens: int
) -> Agreement:
    def same(wanted: Bool[np.ndarray, "..."] | slice, answers: _Answers) -> float:
        return float((_stacked(answers)[wanted] == truth[wanted]).mean())

    truth = _stacked(exact)
    chosen = {name: truth == index for index, name in enumerate(names)}
    return Agreement(
        tuned_tokens=tuned_tokens,
        judged_tokens=len(exact.next_tokens),
        layers={
            layer: Share(float((dropped.experts[layer] == found).mean()), float((tuned.experts[layer] == found).mean()))
            for layer, found in exact.experts.items()
        },
        experts={
            name: Share(same(where, dropped), same(where, tuned)) if where.any() else None
            for name, where in chosen.items()
        },
        expert_shares={name: float(where.mean()) for name, where in chosen.items()},
        next_token=Share(
            float((dropped.next_tokens == exact.next_tokens).mean()),
            float((tuned.next_tokens == exact.next_tokens).mean()),
        ),
    )


def _stacked(answers: _Answers) -> Int[np.ndarray, "layers tokens"]:
    return np.stack(list(answers.experts.values()))
