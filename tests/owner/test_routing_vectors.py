"""Routing vectors: the mean that METHODS §1 defines, whatever the batches and the side of the padding."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from collegium.core.recipe import OwnerRecipe
from collegium.models.ffn_inputs import ffn_input_means
from collegium.owner import kept_expert as kept_expert_module
from collegium.owner.contribute import contribute
from collegium.owner.private_data import load_private
from collegium.owner.routing_vectors import routing_vectors
from collegium.owner.validate import read_contribution
from collegium.privacy.release_store import ReleaseStore
from collegium.selection.pool import is_held_out
from tiny import NO_OVERLAP_CHECK, write_rows

TEXTS = [
    "the old cow",
    "a",
    "two red hull near the big wave and far salt",
    "hen",
    "one small blue keel here",
    "oat rye",
]


def plain_loop(encoder, texts, layers):
    """One text at a time, no padding, hidden states as transformers gives them."""
    total = np.zeros((len(layers), 32))
    for text in texts:
        seen = {}
        hooks = [
            layer.intermediate.register_forward_pre_hook(
                lambda _module, inputs, number=number, seen=seen: seen.update({number: inputs[0][0].double()})
            )
            for number, layer in enumerate(encoder.model.encoder.layer)
        ]
        with torch.no_grad():
            encoder.model(**encoder.tokenizer(text, return_tensors="pt", truncation=True, max_length=32))
        for hook in hooks:
            hook.remove()
        total += np.stack([seen[layer].mean(dim=0).numpy() for layer in layers])
    return total / len(texts)


@pytest.mark.parametrize("layers", [[0], [1], [0, 2], [0, 1, 2]])
def test_the_vectors_equal_a_plain_loop(seed, layers):
    found = routing_vectors(seed, seed.architecture, TEXTS, layers)
    assert found == pytest.approx(plain_loop(seed, TEXTS, layers), abs=1e-6)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_cases_13_and_14_neither_batch_size_nor_the_side_of_the_padding_matters(seed, side, batch_size):
    import copy

    tokenizer = copy.deepcopy(seed.tokenizer)
    tokenizer.padding_side = side
    found = routing_vectors(replace(seed, tokenizer=tokenizer), seed.architecture, TEXTS, [0, 1, 2], batch_size)
    assert found == pytest.approx(plain_loop(seed, TEXTS, [0, 1, 2]), abs=1e-6)


def test_the_order_of_the_texts_does_not_matter_and_every_text_counts(seed):
    found = routing_vectors(seed, seed.architecture, TEXTS, [1], batch_size=4)
    assert routing_vectors(seed, seed.architecture, TEXTS[::-1], [1], batch_size=4) == pytest.approx(found, abs=1e-6)
    rows = [row for batch, _ in ffn_input_means(seed, seed.architecture, TEXTS, [1], batch_size=4) for row in batch]
    assert sorted(rows) == list(range(len(TEXTS)))


@pytest.mark.parametrize("vectors", ["seed", "private", "tuned"])
def test_what_a_contribution_averages(tmp_path, make_charter, pool, seed, vectors, monkeypatch):
    """Private examples and the proxies that are not held out; without proxies for `private`; tuned FFNs for `tuned`."""
    charter = make_charter(
        router={"vectors": vectors, "decide": "every-layer"},
        training={"learning_rate": 1e-2},
        selection={"size": 60},  # of which some are surely held out
    )
    trained = []
    train = kept_expert_module.train_expert
    monkeypatch.setattr(kept_expert_module, "train_expert", lambda *args: trained.append(train(*args)) or trained[0])
    data = write_rows(tmp_path / "farm.jsonl", "farm", 20)
    recipe = OwnerRecipe(name="farm", data=str(data), privacy=NO_OVERLAP_CHECK)
    contribute(charter, recipe, pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "store"))
    read = read_contribution(tmp_path / "out", charter, pool, seed)
    hashes = pool.hashes
    held_out = [row for row in read.proxy_rows if is_held_out(hashes[row], 10)]
    used = [row for row in read.proxy_rows if row not in held_out]
    assert held_out  # otherwise this test would not notice them
    private = load_private(charter, recipe).texts
    texts = private + (pool.texts(used) if vectors != "private" else [])
    encoder = trained[0].encoder if vectors == "tuned" else seed
    found = np.stack([read.routing[layer] for layer in (0, 1, 2)])
    assert found == pytest.approx(plain_loop(encoder, texts, [0, 1, 2]), abs=1e-6)
    assert np.abs(found - plain_loop(encoder, texts + pool.texts(held_out), [0, 1, 2])).max() > 1e-3
    assert vectors != "tuned" or np.abs(found - plain_loop(seed, texts, [0, 1, 2])).max() > 1e-3
    said = next(entry for entry in read.ledger if entry["what"] == "routing vectors")
    assert vectors == "private" or str(len(used)) in said["from_data"]


def test_only_layers_above_a_changed_ffn_see_another_input(seed):
    import copy

    model = copy.deepcopy(seed.model)
    with torch.no_grad():
        model.encoder.layer[1].intermediate.dense.weight.mul_(2)
    tuned = replace(seed, model=model)
    first = routing_vectors(seed, seed.architecture, TEXTS, [0, 1, 2])
    second = routing_vectors(tuned, seed.architecture, TEXTS, [0, 1, 2])
    assert (first[:2] == second[:2]).all()
    assert np.abs(first[2] - second[2]).max() > 1e-3
