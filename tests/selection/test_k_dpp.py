"""The sampler draws every subset as often as its determinant says, with and without a ridge, on any pool."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from collegium.core.errors import InputError
from collegium.selection import k_dpp
from collegium.selection.candidates import candidates
from collegium.selection.k_dpp import HIGHEST, _choose, _size_distribution, select_k_dpp


def make_pool(num_items, dim, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_items, dim))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    log_g = np.log(rng.uniform(0.3, 1, num_items))
    return features.astype(dtype), log_g, [f"{number:06x}" for number in rng.permutation(num_items)]


def kernel(features, log_g, ridge):
    g = np.exp(log_g)
    return g[:, None] * (features.astype(np.float64) @ features.astype(np.float64).T + ridge * np.eye(len(g))) * g


@pytest.mark.parametrize(
    ("num_items", "dim", "size", "ridge"),
    [
        (5, 3, 2, 0.0),
        (6, 4, 3, 0.0),
        (5, 5, 4, 0.0),
        (5, 3, 2, 0.5),
        (6, 2, 3, 0.2),  # more items than dimensions: only the ridge makes it possible
        (6, 3, 1, 0.05),
        (5, 2, 4, 0.01),
    ],
)
def test_frequencies_are_the_determinants(monkeypatch, num_items, dim, size, ridge):
    features, log_g, hashes = make_pool(num_items, dim, seed=num_items * 10 + size)
    full = kernel(features, log_g, ridge)
    subsets = list(combinations(range(num_items), size))
    weights = np.array([np.linalg.det(full[np.ix_(subset, subset)]) for subset in subsets])
    draws = 1500
    counts = dict.fromkeys(subsets, 0)
    rows, weights_of_rows = candidates(features, log_g, size, hashes)
    world, rng = k_dpp._Weighted(features, rows, weights_of_rows), np.random.default_rng(0)
    scale = k_dpp._scale(world, size, ridge) if ridge else None  # the same for every draw
    monkeypatch.setattr(k_dpp, "_scale", lambda *_: scale)
    for _ in range(draws):
        drawn = (
            k_dpp._draw_with_ridge(world, size, ridge, rng) if ridge else k_dpp._draw_without_ridge(world, size, rng)[0]
        )
        counts[tuple(sorted(rows[drawn].tolist()))] += 1
    observed, expected = np.array(list(counts.values())), draws * weights / weights.sum()
    rare = expected < 5  # too few for the test's approximation: all rare subsets count as one
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    assert chisquare(observed, expected).pvalue > 1e-3


def test_the_symmetric_polynomials_neither_overflow_nor_underflow():
    values = np.exp(np.linspace(-300, 300, 120))
    rng = np.random.default_rng(0)
    chosen = _choose(values, 60, rng)
    assert len(set(chosen.tolist())) == 60
    assert chosen.min() >= 55  # products differ by e⁵ from step to step: the largest win


@settings(max_examples=60)
@given(
    num_items=st.integers(1, 40),
    dim=st.integers(1, 8),
    size=st.integers(1, 20),
    ridge=st.sampled_from([0.0, 1e-6, 1e-3, 1.0]),
    never=st.floats(0, 0.8),
    seed=st.integers(0, 1000),
)
def test_distinct_items_with_relevance_and_the_true_log_det(num_items, dim, size, ridge, never, seed):
    features, log_g, hashes = make_pool(num_items, dim, seed)
    log_g[np.random.default_rng(seed).random(num_items) < never] = -np.inf
    selection = select_k_dpp(features, log_g, size, ridge, seed, hashes)
    picks = selection.indices.tolist()
    eligible = int(np.isfinite(log_g).sum())
    assert len(set(picks)) == len(picks) == min(size, eligible if ridge > 0 else min(eligible, dim))
    assert np.isfinite(log_g[picks]).all()
    assert (selection.shortfall is None) == (len(picks) == size)
    log_det = np.linalg.slogdet(kernel(features[picks], log_g[picks], ridge))[1]
    assert selection.log_det == pytest.approx(log_det, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_the_order_of_the_pool_does_not_matter_and_the_random_seed_does(ridge):
    features, log_g, hashes = make_pool(3000, 24, seed=1, dtype=np.float32)
    order = np.random.default_rng(2).permutation(3000)
    selection = select_k_dpp(features, log_g, 20, ridge, 7, hashes)
    permuted = select_k_dpp(features[order], log_g[order], 20, ridge, 7, [hashes[i] for i in order])
    assert order[permuted.indices].tolist() == selection.indices.tolist()
    other = select_k_dpp(features, log_g, 20, ridge, 8, hashes)
    assert set(other.indices.tolist()) != set(selection.indices.tolist())


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_memory_map_gives_the_same(tmp_path, dtype):
    features, log_g, hashes = make_pool(1500, 16, seed=3, dtype=dtype)
    mapped = np.memmap(tmp_path / "features", dtype=dtype, mode="w+", shape=features.shape)
    mapped[:] = features
    selection = select_k_dpp(features, log_g, 30, 1e-3, 0, hashes)
    assert select_k_dpp(mapped, log_g, 30, 1e-3, 0, hashes).indices.tolist() == selection.indices.tolist()


def test_without_a_ridge_the_rank_limits_the_size():
    rng = np.random.default_rng(4)
    features = (rng.normal(size=(400, 5)) @ rng.normal(size=(5, 20))).astype(np.float32)
    selection = select_k_dpp(features, np.zeros(400), 12, 0.0, 0)
    assert len(selection.indices) == 5
    assert "5 of 12" in selection.shortfall
    assert "rank" in selection.shortfall
    assert select_k_dpp(features, np.zeros(400), 12, 1e-3, 0).shortfall is None


def test_duplicates_are_never_drawn_together_without_a_ridge():
    features, log_g, _ = make_pool(8, 6, seed=5)
    twice, log_g = np.concatenate([features, features]), np.concatenate([log_g, log_g])
    for random_seed in range(100):
        picks = select_k_dpp(twice, log_g, 5, 0.0, random_seed).indices
        assert len(set((picks % 8).tolist())) == 5


def test_relevance_far_apart_ends_and_takes_the_strong():
    log_g = np.array([-900.0, -5000.0, -4000.0, -901.0])
    assert select_k_dpp(np.eye(4), log_g, 3, 1e-3, 0).indices.tolist() == [0, 3, 2]
    features, _, hashes = make_pool(60, 5, seed=8)
    log_g = -np.linspace(0, 400, 60)  # g from 1 to e⁻⁴⁰⁰: a subset of 20 is nearly certain
    for size in (3, 20, 50):
        selection = select_k_dpp(features, log_g, size, 1e-3, 0, hashes)
        assert len(set(selection.indices.tolist())) == size
        assert selection.indices.max() < size + 10


def test_a_ridge_lost_in_rounding_is_refused_and_not_drawn_for_ever():
    features, log_g, _ = make_pool(60, 5, seed=9)
    with pytest.raises(InputError, match="cannot be drawn with this ridge"):
        select_k_dpp(features, log_g, 20, 1e-300, 0)
    assert len(select_k_dpp(features, log_g, 20, 1e-12, 0).indices) == 20


def test_a_bad_row_is_named():
    features, log_g, _ = make_pool(2000, 4, seed=6)
    features[1500, 2] = np.nan
    with pytest.raises(InputError, match="Row 1500 of the pool"):
        select_k_dpp(features, log_g, 3, 1e-3, 0)
    with pytest.raises(InputError, match="at least 1"):
        select_k_dpp(features, log_g, 0, 1e-3, 0)


@settings(max_examples=80)
@given(num_items=st.integers(1, 200), spread=st.floats(0.1, 5.0), offset=st.floats(-6, 6), seed=st.integers(0, 1000))
def test_the_distribution_of_sizes_and_its_upper_bound(num_items, spread, offset, seed):
    logits = offset + spread * np.random.default_rng(seed).normal(size=num_items)
    probabilities = 1 / (1 + np.exp(-logits))
    sizes = _size_distribution(probabilities)
    plain = np.ones(1)
    for probability in probabilities:
        plain = np.convolve(plain, [1 - probability, probability])
    np.testing.assert_allclose(sizes[: num_items + 1], plain, atol=1e-14)
    deviation = np.sqrt((probabilities * (1 - probabilities)).sum())
    assert deviation * sizes.max() <= HIGHEST + 1e-12
