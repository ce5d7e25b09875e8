"""What a router would see, against plain hooks on a full pass."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from collegium.models.ffn_inputs import ffn_input_means, norm_bound

TEXTS = ["the old cow", "a", "big small red blue near far here there one two", "hull mast keel sail", "tide salt a"]


def collected(encoder, layers, batch_size=64):
    means = np.full((len(TEXTS), len(layers), encoder.dim), np.nan)
    for rows, batch in ffn_input_means(encoder, encoder.architecture, TEXTS, layers, batch_size):
        assert batch.dtype == np.float64
        means[rows] = batch
    return means


def by_plain_hooks(encoder, layers):
    """Each text alone, a full pass, no mask needed."""
    seen = {}
    hooks = [
        encoder.model.encoder.layer[layer].intermediate.register_forward_pre_hook(
            lambda _, arguments, layer=layer: seen.update({layer: arguments[0]})
        )
        for layer in layers
    ]
    means = []
    for text in TEXTS:
        encoder.model(**encoder.tokenise([text]))
        means.append([seen[layer][0].double().mean(dim=0).numpy() for layer in layers])
    for hook in hooks:
        hook.remove()
    return np.array(means)


@pytest.mark.parametrize("layers", [[1], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_means_are_those_of_plain_hooks_whatever_the_batch_and_padding_side(layers, side, batch_size, seed):
    tokenizer = copy.deepcopy(seed.tokenizer)
    tokenizer.padding_side = side
    encoder = replace(seed, tokenizer=tokenizer)
    np.testing.assert_allclose(collected(encoder, layers, batch_size), by_plain_hooks(seed, layers), atol=1e-5)


@pytest.mark.parametrize("last", [0, 1])
def test_later_layers_are_not_run(last, seed):
    def fail(*_):
        raise AssertionError("a later layer ran")

    hook = seed.model.encoder.layer[last].intermediate.dense.register_forward_pre_hook(fail)
    try:
        assert np.isfinite(collected(seed, [last])).all()
    finally:
        hook.remove()


def test_no_hook_is_left_behind(seed):
    collected(seed, [0, 2])
    assert all(not module._forward_pre_hooks for module in seed.model.modules())


def test_an_error_in_the_pass_is_not_swallowed_and_leaves_no_hook(seed, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(seed.model.embeddings, "forward", broken)
    with pytest.raises(ZeroDivisionError):
        collected(seed, [1])
    assert all(not module._forward_pre_hooks for module in seed.model.modules())


def test_no_text_has_a_mean_longer_than_the_bound(seed):
    model = copy.deepcopy(seed.model)
    generator = torch.Generator().manual_seed(0)
    for layer in model.encoder.layer:
        norm = layer.attention.output.LayerNorm
        norm.weight.data = torch.randn(norm.weight.shape, generator=generator)
        norm.bias.data = torch.randn(norm.bias.shape, generator=generator)
    encoder = replace(seed, model=model)
    lengths = np.linalg.norm(collected(encoder, [0, 1, 2]), axis=2)
    for layer in range(3):
        bound = norm_bound(encoder, encoder.architecture, layer)
        assert lengths[:, layer].max() < bound
        assert lengths[:, layer].max() > bound / 10


def test_the_bound_is_reached_by_a_single_spike(seed):
    norm = torch.nn.LayerNorm(8)
    norm.weight.data.fill_(2.0)
    model = copy.deepcopy(seed.model)
    model.encoder.layer[1].attention.output.LayerNorm = norm
    bound = norm_bound(replace(seed, model=model), seed.architecture, 1)
    assert bound == pytest.approx(2.0 * 8**0.5)
    assert norm(torch.tensor([1e3, *[0.0] * 7])).norm().item() == pytest.approx(bound, rel=1e-3)
