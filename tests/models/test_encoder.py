"""Embeddings do not depend on batch-mates, order, padding or its side (promise 4)."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from collegium.core.errors import RunError
from collegium.models import encoder as encoder_module
from collegium.models.encoder import batches_by_length, embed_texts, pool_tokens

TEXTS = [
    "the old cow",
    "a",
    "big small red blue near far here there one two",
    "hull mast keel sail",
    "wheat barley oat rye the a",
    "stone cloud lamp chair book road bridge clock glass paper",
    "the",
    "tide salt",
]


@pytest.fixture
def left(seed):
    tokenizer = copy.deepcopy(seed.tokenizer)
    tokenizer.padding_side = "left"
    return replace(seed, tokenizer=tokenizer)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_neither_batch_size_nor_order_nor_padding_side_change_an_embedding(pooling, seed, left):
    seed, left = replace(seed, pooling=pooling), replace(left, pooling=pooling)
    expected = np.concatenate([embed_texts(seed, [text]) for text in TEXTS])
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-6)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    for encoder in (seed, left):
        for batch_size in (1, 3, 8, 64):
            np.testing.assert_allclose(embed_texts(encoder, TEXTS, batch_size), expected, rtol=0, atol=1e-5)
        shuffled = embed_texts(encoder, [TEXTS[row] for row in order], 3)
        np.testing.assert_allclose(shuffled, expected[order], rtol=0, atol=1e-5)


def test_the_left_tokenizer_really_pads_on_the_left(left):
    inputs = left.tokenise(["a", "a b c"])
    assert inputs["attention_mask"][0].tolist() == [0, 0, 1, 1, 1]
    assert inputs["position_ids"][0].tolist() == [0, 0, 0, 1, 2]


def test_mean_and_cls_pooling_are_what_they_say():
    hidden = torch.tensor([[[9.0, 9.0], [3.0, 0.0], [0.0, 1.0]]])
    mask = torch.tensor([[0, 1, 1]])
    mean = torch.tensor([[1.5, 0.5]]) / (2.5**0.5)
    torch.testing.assert_close(pool_tokens(hidden, mask, "mean"), mean)
    torch.testing.assert_close(pool_tokens(hidden, mask, "cls"), torch.tensor([[1.0, 0.0]]))


def test_pooling_is_float32_whatever_the_model():
    assert (
        pool_tokens(torch.ones(1, 2, 4, dtype=torch.bfloat16), torch.ones(1, 2).long(), "mean").dtype == torch.float32
    )


def test_every_text_is_in_one_batch_also_across_chunks(seed, monkeypatch):
    monkeypatch.setattr(encoder_module, "CHUNK", 3)
    rows = [row for batch, _ in batches_by_length(seed, TEXTS, 2) for row in batch]
    assert sorted(rows) == list(range(len(TEXTS)))


def test_a_long_text_is_cut_to_max_length(seed):
    short = replace(seed, max_length=6)
    assert short.tokenise([TEXTS[2], "a"])["input_ids"].shape == (2, 6)
    assert not np.allclose(embed_texts(short, [TEXTS[2]]), embed_texts(seed, [TEXTS[2]]))


def test_no_texts_give_no_embeddings(seed):
    assert embed_texts(seed, []).shape == (0, seed.dim)


def test_a_non_finite_embedding_is_an_error_that_names_the_text(seed):
    broken = copy.deepcopy(seed.model)
    broken.embeddings.word_embeddings.weight.data[seed.tokenizer.get_vocab()["cow"]] = float("nan")
    with pytest.raises(RunError, match="non-finite embedding for text 1"):
        embed_texts(replace(seed, model=broken), ["the hen", "the old cow", "a pig"])
