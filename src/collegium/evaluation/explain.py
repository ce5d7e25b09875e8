"""Which expert each token of a text or patch of a picture uses, at every layer, with what weight, and the runner-up.

The numbers are those of the model's own routing (`output_routing=True`), of each item alone; a layer without a router
of its own shows the decision that it reuses, a layer below the decision the seed's feed-forward network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from collegium.data.images import Picture, picture_of
from collegium.models.encoder import Encoder
from collegium.models.pixels import seen_pixels
from collegium.moe.architectures import architecture_of, layers_of
from collegium.moe.router import Routing

SEED = "seed"  # the name of the seed's own feed-forward network: below the decision, as a fallback, in a warm-up


@dataclass(frozen=True)
class Token:
    """One token, as people read it.

    Attributes:
        piece: its part of the text as it was written; of a special token its name; of a patch `row·column`, from 1.
        special: put there by the tokenizer, or by a vision model before the patches.
        joined: it follows the token before without a space.
    """

    piece: str
    special: bool
    joined: bool


@dataclass(frozen=True)
class Step:
    """What one layer does with one token. Experts are indices into the explanation's `experts`.

    Attributes:
        weights: expert → weight, best first.
        probability: the router's, of the best; None where no router chose it.
        runner_up: (expert, probability): the most probable of those not used; None where there is none.
    """

    weights: dict[int, float]
    probability: float | None = None
    runner_up: tuple[int, float] | None = None

    @property
    def expert(self) -> int:
        return next(iter(self.weights))

    def rounded(self) -> "Step":
        """To a thousandth, as far as it is shown."""
        return Step(
            {expert: round(weight, 3) for expert, weight in self.weights.items()},
            None if self.probability is None else round(self.probability, 3),
            None if self.runner_up is None else (self.runner_up[0], round(self.runner_up[1], 3)),
        )


@dataclass(frozen=True)
class Stretch:
    """Neighbouring layers in which every token keeps its experts.

    Attributes:
        last: the last of the layers, included.
        routed: False where the seed's feed-forward network stands alone, below the decision.
        steps: one for each token.
    """

    first: int
    last: int
    routed: bool
    steps: list[Step]

    @property
    def name(self) -> str:
        return f"layer {self.first}" if self.first == self.last else f"layers {self.first}–{self.last}"


@dataclass(frozen=True)
class Grid:
    """The patches of a picture, row by row, which are the tokens behind the first one.

    Attributes:
        seen: the picture as the model sees it, scaled and cropped.
    """

    seen: Picture
    rows: int
    columns: int


@dataclass(frozen=True)
class Explanation:
    """The way of one text or picture through a unified model.

    Attributes:
        text: the text; of a picture its name.
        unread: characters at the end of the text that are beyond the model's longest input.
        experts: names of the owners, and `seed` at the end.
        grid: None for a text.
        warmup: so many tokens at the beginning take the seed's feed-forward network whatever they are.
    """

    text: str
    unread: int
    experts: list[str]
    tokens: list[Token]
    stretches: list[Stretch]
    grid: Grid | None = None
    warmup: int = 0

    @property
    def seed(self) -> int:
        """Index of the seed's own feed-forward network."""
        return len(self.experts) - 1

    def named(self, tokens: Sequence[Token]) -> str:
        """Neighbouring tokens as one piece of text, neighbouring patches by the first and the last of them."""
        patches = [token.piece for token in tokens if not token.special]
        if self.grid is None or not patches:
            return written(tokens)
        run = f"patch {patches[0]}" if len(patches) == 1 else f"patches {patches[0]} to {patches[-1]}"
        return ", ".join([*(token.piece for token in tokens if token.special), run])

    def mark(self, expert: int) -> str:
        """A short sign for an expert: `A` to `Z`, then `A1` and so on; `·` for the seed."""
        if expert == self.seed:
            return "·"
        return chr(ord("A") + expert % 26) + (str(expert // 26) if expert >= 26 else "")

    def rows(self) -> list[tuple[list[Token], list[Step]]]:
        """Neighbouring tokens that every stretch treats alike (to a thousandth), with their step in each stretch.

        With `context_weight: 1` these are all tokens of a text: the router then sees nothing of a token alone.
        """
        ways = zip(self.tokens, *(stretch.steps for stretch in self.stretches), strict=True)
        runs = groupby(ways, key=lambda way: [step.rounded() for step in way[1:]])
        found = []
        for _, run in runs:
            alike = list(run)
            found.append(([way[0] for way in alike], list(alike[0][1:])))
        return found

    def shares(self) -> dict[int, float]:
        """Expert → share of the routed tokens of all layers whose first choice it is; the most used first."""
        counts = dict.fromkeys(range(len(self.experts)), 0)
        for stretch in self.stretches:
            for step in stretch.steps if stretch.routed else ():
                counts[step.expert] += stretch.last - stretch.first + 1
        total = sum(counts.values())
        used = sorted((expert for expert in counts if counts[expert]), key=lambda expert: (-counts[expert], expert))
        return {expert: counts[expert] / total for expert in used}


def explain_text(encoder: Encoder, text: str) -> Explanation:
    """Run one text through a unified model and say which experts its tokens use.

    Args:
        encoder: a unified model with its tokenizer.
    """
    inputs = encoder.tokenise([text])
    tokens, unread = _tokens(encoder, text, inputs["input_ids"][0].tolist())
    names, stretches = _ways(encoder, inputs, len(tokens))
    warmup = min(len(tokens), max(0, encoder.model.config.warmup_tokens - 1))  # a token counts itself
    return Explanation(text, unread, names, tokens, stretches, warmup=warmup)


def explain_picture(encoder: Encoder, picture: Picture, name: str) -> Explanation:
    """Run one picture through a unified model and say which experts its patches use.

    Args:
        encoder: a unified model with its image processor.
        name: of the picture, to show.
    """
    inputs = encoder.tokenise([picture])
    height, width = inputs["pixel_values"].shape[-2:]
    side = encoder.model.config.patch_size
    grid = Grid(picture_of(seen_pixels(encoder.tokenizer, picture)), height // side, width // side)
    places = np.ndindex(grid.rows, grid.columns)
    patches = [Token(f"{row + 1}·{column + 1}", False, False) for row, column in places]
    tokens = [Token("[CLS]", True, False), *patches]  # every vision family puts one token before the patches
    names, stretches = _ways(encoder, inputs, len(tokens))
    return Explanation(name, 0, names, tokens, stretches, grid)


def _ways(encoder: Encoder, inputs: dict[str, Tensor], num_tokens: int) -> tuple[list[str], list[Stretch]]:
    """Names of the experts, and what every layer does with the tokens of one item."""
    model = encoder.model
    with torch.inference_mode():
        routings: dict[int, Routing] = model(**inputs, output_routing=True).routings
    names = [*model.config.expert_names, SEED]
    alone = [Step({len(names) - 1: 1.0})] * num_tokens
    first = model.config.first_moe_layer
    num_layers = len(layers_of(model, architecture_of(model.config.seed_model_type)))
    stretches = [Stretch(0, first - 1, False, alone)] if first > 0 else []
    deciding = sorted(routings)
    for layer, following in zip(deciding, [*deciding[1:], num_layers], strict=True):
        stretches.append(Stretch(layer, following - 1, True, _steps(routings[layer])))
    return names, stretches


def written(tokens: Sequence[Token]) -> str:
    """Neighbouring tokens as one piece of text."""
    return "".join(("" if index == 0 or token.joined else " ") + token.piece for index, token in enumerate(tokens))


def _steps(routing: Routing) -> list[Step]:
    """One step for each token; `routing` is of one text."""
    probabilities: list[list[float]] = routing.logits[0].softmax(dim=-1).tolist()
    chosen: list[list[int]] = routing.experts[0].tolist()
    weighted: list[list[float]] = routing.weights[0].tolist()
    steps = []
    for experts, weights, likely in zip(chosen, weighted, probabilities, strict=True):
        # In a warm-up the seed stands in every place, with weight 0 in all but the first.
        used = {expert: weight for expert, weight in zip(experts, weights, strict=True) if weight > 0.0}
        used = used or {experts[0]: weights[0]}
        others = [expert for expert in range(len(likely)) if expert not in used and likely[expert] > 0.0]
        second = max(others, key=lambda expert: likely[expert], default=None)
        steps.append(
            Step(
                weights=used,
                probability=likely[experts[0]] if experts[0] < len(likely) else None,
                runner_up=None if second is None else (second, likely[second]),
            )
        )
    return steps


def _tokens(encoder: Encoder, text: str, ids: Sequence[int]) -> tuple[list[Token], int]:
    """The tokens as they stand in the text, and how many characters at its end the model does not see."""
    tokenizer = encoder.tokenizer
    if not tokenizer.is_fast:  # no offsets: its own notation
        return [Token(piece, False, False) for piece in tokenizer.convert_ids_to_tokens(ids)], 0
    encoded = tokenizer(text, truncation=True, max_length=encoder.max_length, return_offsets_mapping=True)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    tokens, end = [], 0
    for index, (start, stop) in zip(ids, encoded["offset_mapping"], strict=True):
        if index in special:
            tokens.append(Token(tokenizer.convert_ids_to_tokens(index), True, False))
        else:
            piece = text[start:stop]
            joined = bool(tokens) and not tokens[-1].special and start <= end and piece[:1].strip() != ""
            tokens.append(Token(piece.strip() or piece, False, joined))
        end = max(end, stop)
    return tokens, len(text.rstrip()) - end if end < len(text.rstrip()) else 0
