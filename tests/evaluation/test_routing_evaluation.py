"""Routing figures: shares of tokens, the most used expert, and how many texts go to their own domain's."""

import numpy as np
import pytest
import torch

from collegium.core.router_settings import RouterSettings
from collegium.evaluation.evaluate import Domain, grade
from collegium.evaluation.routing import RoutedTokens, Routes, evaluate_routed, sequence_routing
from collegium.models.encoder import Encoder, embed_texts
from collegium.models.expert_tensors import ffn_tensors
from collegium.models.tasks import class_set
from collegium.unify.merge import unified_model
from families import tiny_seed, tiny_unified

DOMAINS = {"farm": ("a {label}", ["cow", "wheat"]), "port": ("the {label}", ["hull", "wave"])}

TEXTS = ["the old cow", "a", "hull mast keel sail near far", "tide", "wheat barley oat rye the a", "one two"]


def routed(used):
    return Routes({}, np.array(used))


@pytest.fixture(scope="module")
def unified(seed):
    """Two experts, a decision for each token in every layer, random routers."""

    def build(**router):
        router = RouterSettings(**{"decide": "every-layer", "context": "token", "context_weight": 0.0} | router)
        experts = {name: ffn_tensors(seed, [0, 1, 2]) for name in ("farm", "port")}
        model = unified_model(seed, experts, [0, 1, 2], router)
        generator = torch.Generator().manual_seed(3)
        for one in model.routers.values():
            one.weight.data = torch.randn(one.weight.shape, generator=generator)
        return Encoder(model=model, tokenizer=seed.tokenizer, pooling=seed.pooling, max_length=seed.max_length)

    return build


def test_sequence_routing_is_the_macro_average_over_domains_of_texts_sent_home():
    answers = {"farm": routed([0, 0, 0, 1]), "port": routed([1, 0])}
    assert sequence_routing(answers, ["farm", "port"]) == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert sequence_routing(answers, ["port", "farm"]) == pytest.approx((1 / 4 + 1 / 2) / 2)


def test_sequence_routing_leaves_out_domains_without_an_expert():
    answers = {"farm": routed([0, 0]), "mine": routed([1, 1])}
    assert sequence_routing(answers, ["farm", "port"]) == 1.0


@pytest.mark.parametrize("experts_per_token", [1, 2])
def test_tokens_are_counted_without_padding(experts_per_token, unified, seed):
    encoder = unified(experts_per_token=experts_per_token, fallback=True)
    watch = RoutedTokens(encoder, len(TEXTS))
    embeddings, tokens = embed_texts(encoder, TEXTS, 4, watch), watch.tokens
    np.testing.assert_allclose(embeddings, embed_texts(encoder, TEXTS), atol=1e-5)
    lengths = [len(seed.tokenizer(text)["input_ids"]) for text in TEXTS]
    assert list(tokens) == [0, 1, 2]
    for counts in tokens.values():
        assert counts.shape == (6, 3)
        np.testing.assert_array_equal(counts.sum(axis=1), np.array(lengths) * experts_per_token)


def tokens_of(encoder, batch_size):
    watch = RoutedTokens(encoder, len(TEXTS))
    embed_texts(encoder, TEXTS, batch_size, watch)
    return watch.tokens


def test_in_a_warm_up_the_seed_is_counted_without_being_an_expert_of_the_router(seed):
    model = tiny_unified(tiny_seed("llama", "LlamaModel"), context="causal", warmup_tokens=4)
    encoder = Encoder(model=model, tokenizer=seed.tokenizer, pooling="mean", max_length=32)
    tokens = tokens_of(encoder, batch_size=4)
    lengths = np.array([len(seed.tokenizer(text)["input_ids"]) for text in TEXTS])
    for counts in tokens.values():
        np.testing.assert_array_equal(counts[:, 3], np.minimum(lengths, 3))  # after the owners: the seed
        np.testing.assert_array_equal(counts.sum(axis=1), lengths)


def test_batch_size_changes_no_route(unified):
    encoder = unified()
    alone, together = tokens_of(encoder, batch_size=1), tokens_of(encoder, batch_size=6)
    for layer in alone:
        np.testing.assert_array_equal(alone[layer], together[layer])


def test_shares_sum_to_one_and_the_most_used_expert_counts_all_layers(unified, seed):
    encoder = unified()
    classes = class_set(
        seed, {"farm": ("a {label}", ["cow", "wheat"]), "port": ("the {label}", ["hull", "wave"])}, 20.0
    )
    domain = Domain("farm", TEXTS, np.array([0, 1, 0, 1, 0, 1]))
    correct, routes = evaluate_routed(encoder, [domain], classes, batch_size=4)
    answers = routes["farm"]
    tokens = tokens_of(encoder, batch_size=4)
    assert {len(shares) for shares in answers.shares.values()} == {2}
    for layer, shares in answers.shares.items():
        assert shares.sum() == pytest.approx(1)
        per_text = tokens[layer] / tokens[layer].sum(axis=1, keepdims=True)
        np.testing.assert_allclose(shares, per_text.mean(axis=0))  # texts count alike, whatever their length
    np.testing.assert_array_equal(answers.used, (tokens[0] + tokens[1] + tokens[2]).argmax(axis=1))
    expected = grade(classes.logits(encoder, TEXTS), domain, classes)
    np.testing.assert_array_equal(correct["farm"].union, expected.union)
