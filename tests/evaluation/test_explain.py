"""What `explain` shows is the model's own routing, token by token (or patch by patch) and layer by layer."""

import numpy as np
import pytest
import torch
from transformers import BitImageProcessorPil, CLIPImageProcessorPil, ViTImageProcessorPil

from collegium.data.images import picture_of
from collegium.evaluation.explain import Explanation, Grid, Stretch, explain_picture, explain_text, written
from collegium.models.encoder import Encoder
from families import tiny_seed, tiny_unified
from tiny import draw

TEXT = "the old cow near a big hull, zebra [SEP] far"


@pytest.fixture
def make_encoder(seed):
    """A unified model with spread tokens; a family other than BERT gets the same word tokenizer."""

    def make(family="bert", **options):
        model = seed.model if family == "bert" else tiny_seed(family)
        unified = tiny_unified(model, noise=0.05, steepness=2.0, **options)
        return Encoder(unified, seed.tokenizer, "mean", 16)

    return make


def routing_of(encoder, text):
    with torch.inference_mode():
        return encoder.model(**encoder.tokenise([text]), output_routing=True).routings


def stretch_of(explanation: Explanation, layer: int) -> Stretch:
    return next(one for one in explanation.stretches if one.first <= layer <= one.last)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("bert", {"decide": "every-layer", "context": "sequence"}),
        ("bert", {"decide": "every-layer", "context": "seed", "fallback": True}),
        ("bert", {"decide": "once", "context": "token", "fallback": True}),
        ("bert", {"decide": "once", "experts_per_token": 2, "weighting": "softmax"}),
        ("llama", {"decide": "every-layer", "context": "causal", "experts_per_token": 2}),
        ("gemma2", {"decide": "once", "context": "token"}),
        ("bert", {"decide": "every-layer", "fallback": True, "expert_ranks": [2, None, 3], "experts_per_token": 2}),
    ],
    ids=str,
)
def test_the_numbers_are_those_of_the_models_routing(family, options, make_encoder):
    encoder = make_encoder(family, **options)
    explanation = explain_text(encoder, TEXT)
    routings = routing_of(encoder, TEXT)
    assert [layer for one in explanation.stretches for layer in range(one.first, one.last + 1)] == [0, 1, 2]
    assert len({step.expert for one in explanation.stretches if one.routed for step in one.steps}) > 1
    for layer, routing in routings.items():
        stretch = stretch_of(explanation, layer)
        assert stretch.routed
        probabilities = routing.logits[0].softmax(dim=-1)
        for index, step in enumerate(stretch.steps):
            chosen = routing.experts[0, index].tolist()
            assert list(step.weights) == chosen
            assert list(step.weights.values()) == routing.weights[0, index].tolist()
            assert step.probability == probabilities[index, chosen[0]].item()
            order = probabilities[index].argsort(descending=True).tolist()
            assert step.runner_up == (order[len(chosen)], probabilities[index, order[len(chosen)]].item())


def test_below_the_decision_the_seed_stands_alone_and_above_it_the_decision_stays(make_encoder):
    explanation = explain_text(make_encoder(decide="once", decide_layer=1), TEXT)
    below, above = explanation.stretches
    assert (below.name, below.routed) == ("layer 0", False)
    assert (above.name, above.routed) == ("layers 1–2", True)
    assert {explanation.experts[step.expert] for step in below.steps} == {"seed"}
    assert {step.probability for step in below.steps} == {None}


def test_in_a_warm_up_the_seed_answers_and_no_probability_is_claimed(make_encoder):
    explanation = explain_text(make_encoder("llama", warmup_tokens=3, experts_per_token=2), TEXT)
    steps = explanation.stretches[-1].steps
    assert [explanation.experts[step.expert] for step in steps[:2]] == ["seed", "seed"]
    assert [(step.weights, step.probability) for step in steps[:2]] == [({3: 1.0}, None)] * 2
    assert all(step.expert < 3 and step.probability is not None for step in steps[2:])
    assert explain_text(make_encoder("llama", warmup_tokens=3), TEXT).warmup == 2
    assert explain_text(make_encoder("llama", warmup_tokens=300), "cow").warmup == 3
    assert explain_text(make_encoder("llama"), TEXT).warmup == 0


def test_tokens_read_as_the_text_was_written_and_special_ones_are_marked(make_encoder):
    tokens = explain_text(make_encoder(), TEXT).tokens
    assert written(tokens) == "[CLS] the old cow near a big hull, zebra [SEP] far [SEP]"  # an unknown word too
    assert [token.piece for token in tokens if token.special] == ["[CLS]", "[SEP]", "[SEP]"]


def test_what_the_model_does_not_read_is_counted(make_encoder):
    explanation = explain_text(make_encoder(), "cow " * 20)
    assert len(explanation.tokens) == 16
    assert explanation.unread == len("cow " * 20) - 1 - (14 * 4 - 1)
    assert explain_text(make_encoder(), "cow  ").unread == 0


def test_shares_count_the_routed_layers_alone(make_encoder):
    encoder = make_encoder(decide="once", context="token")
    explanation = explain_text(encoder, TEXT)
    counts = torch.bincount(routing_of(encoder, TEXT)[1].experts.flatten(), minlength=4)
    used = {expert: count / int(counts.sum()) for expert, count in enumerate(counts.tolist()) if count}
    assert explanation.shares() == used
    assert list(explanation.shares().values()) == sorted(used.values(), reverse=True)


def test_tokens_with_the_same_way_share_a_row(make_encoder):
    encoder = make_encoder(decide="once")
    for router in encoder.model.routers.values():
        router.context_weight.data.fill_(1.0)
    ((tokens, steps),) = explain_text(encoder, TEXT).rows()
    assert written(tokens) == "[CLS] the old cow near a big hull, zebra [SEP] far [SEP]"
    assert len(steps) == 2
    assert len(explain_text(make_encoder(decide="once", context="token"), TEXT).rows()) > 3


HALF = [0.5, 0.5, 0.5]
SQUARE = {"size": {"height": 12, "width": 12}, "image_mean": HALF, "image_std": HALF}
CROPPED = {
    "size": {"shortest_edge": 16},
    "crop_size": {"height": 12, "width": 12},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.3, 0.4],
}
PROCESSORS = {
    "vit": ViTImageProcessorPil(**SQUARE),
    "clip_vision_model": CLIPImageProcessorPil(**CROPPED),
    "dinov2": BitImageProcessorPil(**CROPPED),
}


@pytest.fixture
def make_seer():
    """A unified vision model for pictures of 12 × 12 pixels, 3 × 3 patches."""

    def make(family="vit", **options):
        unified = tiny_unified(tiny_seed(family), noise=0.05, steepness=2.0, **options)
        return Encoder(unified, PROCESSORS[family], "cls", 10)

    return make


@pytest.mark.parametrize("family", list(PROCESSORS))
@pytest.mark.parametrize(
    "options",
    [
        {"decide": "every-layer", "context": "token", "experts_per_token": 2},
        {"decide": "once", "context": "token", "fallback": True, "expert_ranks": [2, 2, 2]},
    ],
    ids=["every-layer", "once"],
)
def test_every_patch_has_the_models_routing_and_its_place_in_what_the_model_sees(family, options, make_seer):
    encoder = make_seer(family, **options)
    picture = picture_of(draw("bag", 0, side=24)[:18])
    explanation = explain_picture(encoder, picture, "bag.png")
    inputs = encoder.tokenise([picture])
    with torch.inference_mode():
        routings = encoder.model(**inputs, output_routing=True).routings
    for layer, routing in routings.items():
        steps = stretch_of(explanation, layer).steps
        assert [list(step.weights) for step in steps] == routing.experts[0].tolist()
        assert [list(step.weights.values()) for step in steps] == routing.weights[0].tolist()
    grid = explanation.grid
    assert isinstance(grid, Grid)
    assert (grid.rows, grid.columns) == (3, 3)
    assert [token.piece for token in explanation.tokens[:5]] == ["[CLS]", "1·1", "1·2", "1·3", "2·1"]
    assert [token.special for token in explanation.tokens] == [True] + [False] * 9
    mean, deviation = (np.array(getattr(encoder.tokenizer, name)) for name in ("image_mean", "image_std"))
    numbers = ((grid.seen.pixels / 255 - mean) / deviation).transpose(2, 0, 1)
    np.testing.assert_allclose(inputs["pixel_values"][0].numpy(), numbers, atol=1e-5)


def test_patches_are_named_by_the_first_and_the_last_of_a_run(make_seer):
    encoder = make_seer(decide="once")
    for router in encoder.model.routers.values():
        router.context_weight.data.fill_(1.0)
    explanation = explain_picture(encoder, picture_of(draw("bag", 0)), "bag.png")
    ((tokens, _),) = explanation.rows()
    assert explanation.named(tokens) == "[CLS], patches 1·1 to 3·3"
    assert explanation.named(tokens[:1]) == "[CLS]"
    assert explanation.named(tokens[4:5]) == "patch 2·1"
    assert explanation.named(tokens[3:5]) == "patches 1·3 to 2·1"


def test_experts_have_signs_of_their_own():
    many = Explanation("", 0, [*(f"owner-{index}" for index in range(60)), "seed"], [], [])
    signs = [many.mark(expert) for expert in range(61)]
    assert len(set(signs)) == 61
    assert (signs[0], signs[25], signs[26], signs[60]) == ("A", "Z", "A1", "·")
