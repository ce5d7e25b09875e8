"""The sensitivity bound holds for the seed's pass, whatever the private examples are (METHODS §1)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collegium.models.ffn_inputs import ffn_input_means, norm_bound
from collegium.owner.routing_vectors import routing_vectors
from collegium.privacy.sensitivity import routing_sensitivity

WORDS = ["the", "old", "red", "here", "cow", "hen", "wheat", "rye", "hull", "wave", "salt", "stone", "lamp", "about"]
texts = st.lists(st.sampled_from([*WORDS, "never-seen"]), min_size=0, max_size=40).map(" ".join)
LAYERS = [0, 1, 2]


def bounds(seed, layers=LAYERS):
    return [norm_bound(seed, seed.architecture, layer) for layer in layers]


@settings(max_examples=25, deadline=None)
@given(
    private=st.lists(texts, min_size=1, max_size=4),
    other=texts,
    proxies=st.lists(texts, min_size=1, max_size=6),
    layers=st.sampled_from([[1], [0, 2], LAYERS]),
)
def test_replacing_one_private_example_moves_the_vectors_by_no_more_than_the_bound(
    seed, private, other, proxies, layers
):
    first = routing_vectors(seed, seed.architecture, private + proxies, layers)
    second = routing_vectors(seed, seed.architecture, [other, *private[1:], *proxies], layers)
    limit = routing_sensitivity(bounds(seed, layers), len(proxies))
    moved = float(np.linalg.norm(first - second))
    assert moved <= limit * len(proxies) / (len(private) + len(proxies)) * (1 + 1e-9)  # 2B/(N+m)
    assert moved <= limit


@settings(max_examples=25, deadline=None)
@given(text=texts)
def test_no_text_makes_a_longer_vector_than_the_norm_bound(seed, text):
    for _, means in ffn_input_means(seed, seed.architecture, [text], LAYERS):
        assert (np.linalg.norm(means[0], axis=1) <= bounds(seed)).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_the_norm_bound_holds_for_any_layer_norm_and_any_input(number):
    """The bound is of the LayerNorm itself, so also for γ and β that training has made large or negative."""
    generator = torch.Generator().manual_seed(number)
    norm = torch.nn.LayerNorm(16).double()
    with torch.no_grad():
        norm.weight.copy_(torch.randn(16, generator=generator, dtype=torch.float64) * 3)
        norm.bias.copy_(torch.randn(16, generator=generator, dtype=torch.float64) * 3)
    worst = torch.zeros(16, dtype=torch.float64)
    worst[int(norm.weight.abs().argmax())] = 1e6  # nearly attains max|γ| √d
    inputs = torch.cat([torch.randn(50, 16, generator=generator, dtype=torch.float64) * 10, worst[None], -worst[None]])
    norm.requires_grad_(False)
    limit = float(norm.weight.abs().max() * 4 + norm.bias.norm())
    assert float(norm(inputs).norm(dim=1).max()) <= limit


def test_the_norm_bound_of_a_seed_follows_its_layer_norm(seed):
    import copy

    changed = copy.deepcopy(seed.model)
    norm = changed.encoder.layer[1].attention.output.LayerNorm
    with torch.no_grad():
        norm.weight[3] = -5.0
        norm.bias.fill_(0.5)
    from dataclasses import replace

    other = replace(seed, model=changed)
    assert norm_bound(other, seed.architecture, 1) == pytest.approx(5 * math.sqrt(32) + 0.5 * math.sqrt(32))
    assert norm_bound(other, seed.architecture, 0) == norm_bound(seed, seed.architecture, 0)
    for _, means in ffn_input_means(other, seed.architecture, ["a cow", "the old red hull"], [1]):
        assert np.linalg.norm(means, axis=2).max() <= norm_bound(other, seed.architecture, 1)


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=5), st.integers(1, 1000))
def test_the_bound_falls_with_the_proxies_and_adds_layers_in_squares(norm_bounds, num_proxies):
    value = routing_sensitivity(norm_bounds, num_proxies)
    assert value * num_proxies == pytest.approx(2 * math.hypot(*norm_bounds))
    assert routing_sensitivity(norm_bounds, num_proxies + 1) <= value
    assert routing_sensitivity(norm_bounds, 0) == routing_sensitivity(norm_bounds, 1)
