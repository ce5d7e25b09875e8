"""The fast selection is the float64 dense greedy, item by item, and keeps the contract of SELECTION.md."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from collegium.core.errors import InputError
from collegium.selection import dpp, residuals
from collegium.selection.dpp import select_dpp
from collegium.selection.residuals import ROUNDING, SPANNED, TIE, Directions, Residuals

KINDS = ("random", "clustered", "tight", "duplicates", "rank-deficient", "one-hot", "not unit-norm")
RELEVANCES = ("equal", "uniform", "adversarial", "some never", "tiny")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make_features(kind, num_items, dim, rng):
    few = max(1, num_items // 4)
    centres = rng.normal(size=(few, dim))[rng.integers(few, size=num_items)]
    return {
        "random": lambda: unit(rng.normal(size=(num_items, dim))),
        "clustered": lambda: unit(centres + 0.3 * rng.normal(size=(num_items, dim))),
        "tight": lambda: unit(centres + 1e-3 * rng.normal(size=(num_items, dim))),
        "duplicates": lambda: unit(centres),
        "rank-deficient": lambda: unit(
            rng.normal(size=(num_items, (dim + 1) // 2)) @ rng.normal(size=((dim + 1) // 2, dim))
        ),
        "one-hot": lambda: np.eye(dim)[rng.integers(dim, size=num_items)],
        "not unit-norm": lambda: rng.normal(size=(num_items, dim)) * rng.uniform(0.01, 10, size=(num_items, 1)),
    }[kind]()


def make_relevance(kind, num_items, rng):
    log_g = {
        "equal": np.zeros(num_items),
        "uniform": np.log(rng.uniform(0.05, 1, num_items)),
        "adversarial": np.log(10.0) * rng.uniform(-12, 0, num_items),
        "some never": np.where(rng.random(num_items) < 0.4, -np.inf, 0.0),
        "tiny": rng.uniform(-900, -890, num_items),  # g itself is below the smallest float64
    }[kind]
    return log_g


def naive_greedy(features, log_g, size, ridge, hashes):
    """Greedy MAP on the dense kernel by determinants, with the stated rules for ties and for the rank."""
    spanned = max(SPANNED, 64 * np.finfo(features.dtype).eps ** 2)
    features = np.asarray(features, np.float64)
    kernel = features @ features.T + ridge * np.eye(len(features))
    norms = (features**2).sum(1)
    picks, log_det = [], 0.0
    kernel_log_det = 0.0  # of the picks, without the relevance: diag(g) only adds 2·log g
    # Near the rank the determinants are rounding: that it is at most the dimension, they do not know.
    while len(picks) < min(size, len(features) if ridge > 0 else features.shape[1]):
        rest = [i for i in range(len(features)) if i not in picks and log_g[i] > -np.inf]
        if not rest:
            break
        subsets = np.array([[*picks, i] for i in rest])
        signs, log_dets = np.linalg.slogdet(kernel[subsets[:, :, None], subsets[:, None, :]])
        with np.errstate(invalid="ignore"):
            values = np.where(signs > 0, np.exp(log_dets - kernel_log_det), 0.0)
        alive = [j for j, i in enumerate(rest) if values[j] > (0 if ridge > 0 else spanned * norms[i])]
        if not alive:
            break
        tie = {j: TIE * (ridge + norms[rest[j]]) for j in alive}
        best = max(alive, key=lambda j: 2 * log_g[rest[j]] + np.log(values[j]))
        floor = 2 * log_g[rest[best]] + np.log(max(values[best] - tie[best], values[best] / 2))
        ties = [j for j in alive if 2 * log_g[rest[j]] + np.log(values[j] + tie[j]) >= floor]
        winner = min(ties, key=lambda j: (hashes[rest[j]], rest[j]))
        picks.append(rest[winner])
        kernel_log_det = log_dets[winner]
        log_det = kernel_log_det + 2 * log_g[picks].sum()
    return picks, log_det


def make_hashes(num_items, rng):
    return [f"{number:06x}" for number in rng.permutation(num_items)]


@settings(max_examples=250, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    relevance=st.sampled_from(RELEVANCES),
    num_items=st.integers(1, 30),
    dim=st.integers(1, 12),
    size=st.integers(1, 16),
    ridge=st.sampled_from([0.0, 1e-3, 0.1, 10.0]),
    active=st.sampled_from([1, 2, 5, 1024]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_picks_are_those_of_the_dense_greedy(*, kind, relevance, num_items, dim, size, ridge, active, dtype, seed):
    rng = np.random.default_rng(seed)
    features, log_g = make_features(kind, num_items, dim, rng).astype(dtype), make_relevance(relevance, num_items, rng)
    hashes = make_hashes(num_items, rng)
    with mock.patch.object(dpp, "ACTIVE", (active, active)), mock.patch.object(residuals, "CHUNK", 3):
        selection = select_dpp(features, log_g, size, ridge, hashes)
    picks, log_det = naive_greedy(features, log_g, size, ridge, hashes)
    assert selection.indices.tolist() == picks
    assert selection.log_det == pytest.approx(log_det, rel=1e-6, abs=1e-6)
    assert len(set(picks)) == len(picks)
    assert (log_g[selection.indices] > -np.inf).all()
    assert (selection.gains[1:] <= selection.gains[:-1] * (1 + 1e-6) + 1e-300).all()
    assert (selection.shortfall is None) == (len(picks) == size)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    relevance=st.sampled_from(RELEVANCES),
    ridge=st.sampled_from([0.0, 1e-3]),
    active=st.sampled_from([2, 16, 1024]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_order_of_the_pool_does_not_matter(kind, relevance, ridge, active, seed):
    rng = np.random.default_rng(seed)
    features, log_g, hashes = (
        make_features(kind, 60, 8, rng),
        make_relevance(relevance, 60, rng),
        make_hashes(60, rng),
    )
    order = rng.permutation(60)
    selection = select_dpp(features, log_g, 20, ridge, hashes)
    with mock.patch.object(dpp, "ACTIVE", (active, active)):
        permuted = select_dpp(features[order], log_g[order], 20, ridge, [hashes[i] for i in order])
    assert order[permuted.indices].tolist() == selection.indices.tolist()


def chen_greedy(features, log_g, size, ridge):
    """Chen, Zhang, Zhou 2018 on the dense kernel, in float64; the lowest row where two are equal."""
    scaled = features.astype(np.float64) * np.exp(log_g)[:, None]
    kernel = scaled @ scaled.T + np.diag(ridge * np.exp(2 * log_g))
    residual, rows, picks = kernel.diagonal().copy(), np.zeros((0, len(features))), []
    for _ in range(min(size, features.shape[1]) if ridge == 0 else size):
        item = int(np.argmax(residual))
        row = (kernel[item] - rows[:, item] @ rows) / np.sqrt(residual[item])
        rows, residual = np.vstack([rows, row]), residual - row**2
        residual[item] = -np.inf
        picks.append(item)
    return picks


@pytest.mark.parametrize("kind", ["random", "clustered", "tight", "duplicates"])
@pytest.mark.parametrize("ridge", [0.0, 1e-3])
@pytest.mark.parametrize("active", [17, 1024])
def test_many_rounds_on_a_larger_pool(kind, ridge, active):
    rng = np.random.default_rng(5)
    features = make_features(kind, 3000, 48, rng).astype(np.float32)
    log_g = np.log(rng.uniform(0.01, 1, 3000))
    with mock.patch.object(dpp, "ACTIVE", (active, active)):
        selection = select_dpp(features, log_g, 80, ridge, None)
    assert selection.indices.tolist() == chen_greedy(features, log_g, 80, ridge)


def test_items_that_float32_cannot_tell_apart():
    # Thirty directions, each with a hundred items whose lengths differ by 1e-8: float32 sees one length, the order
    # of the picks is decided by float64.
    rng = np.random.default_rng(6)
    centres = np.linalg.qr(rng.normal(size=(64, 30)))[0].T
    features = np.repeat(centres, 100, axis=0)
    log_g = 0.5 * np.log1p(-1e-8 * rng.permutation(3000))
    assert np.float32(np.exp(log_g[:100])).std() < 1e-4
    hashes = [f"{row:04d}" for row in range(3000)]
    features = features.astype(np.float32)
    for ridge in (0.0, 1e-3, 1e-6):
        picks = select_dpp(features, log_g, 30, ridge, hashes).indices.tolist()
        assert picks == chen_greedy(features, log_g, 30, ridge)


@pytest.mark.parametrize("kind", ["random", "clustered", "tight", "duplicates", "one-hot"])
@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_float32_stays_far_within_its_stated_rounding(kind, ridge):
    rng = np.random.default_rng(7)
    features = make_features(kind, 2000, 96, rng).astype(np.float32)
    double = features.astype(np.float64)
    directions = Directions(90, 96, ridge)
    pool = Residuals(features, np.zeros(2000), directions, None)
    true = ridge + (double**2).sum(1)
    for steps in (1, 9, 30, 50):
        for row in rng.permutation(2000)[:steps]:
            direction, _ = directions.append(double[row], 1.0 + ridge)
            true = np.maximum(true - (double @ direction) ** 2, ridge)
        pool.leaders(2000)
        assert (np.abs(pool.value - true) <= pool.error / 4 + 1e-12).all()
    assert pool.error.max() < 4 * ROUNDING * np.finfo(np.float32).eps * np.sqrt(96 + 90)


@pytest.mark.parametrize("scale", [1e-12, 1e12, 1e30])
def test_float32_features_of_unusual_length(scale):
    features = (make_features("clustered", 500, 16, np.random.default_rng(8)) * scale).astype(np.float32)
    selection = select_dpp(features, np.zeros(500), 16, 0.0)
    reference = features.astype(np.float64) / scale
    assert selection.indices.tolist() == chen_greedy(reference, np.zeros(500), 16, 0.0)


def test_more_items_than_dimensions_again_and_again():
    features = make_features("clustered", 2500, 12, np.random.default_rng(9)).astype(np.float32)
    log_g = np.log(np.random.default_rng(9).uniform(0.2, 1, 2500))
    selection = select_dpp(features, log_g, 120, 1e-2)
    assert selection.indices.tolist() == chen_greedy(features, log_g, 120, 1e-2)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing(threads):
    features = make_features("clustered", 6000, 32, np.random.default_rng(10)).astype(np.float32)
    log_g = np.log(np.random.default_rng(10).uniform(0.1, 1, 6000))
    alone, together = (select_dpp(features, log_g, 60, 1e-3, threads=count) for count in (1, threads))
    assert alone.indices.tolist() == together.indices.tolist()
    assert alone.gains.tolist() == together.gains.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_memory_map_gives_the_same_and_so_do_threads(tmp_path, dtype):
    rng = np.random.default_rng(1)
    features = make_features("clustered", 2500, 24, rng).astype(dtype)
    log_g = np.log(rng.uniform(0.01, 1, 2500))
    mapped = np.memmap(tmp_path / "features", dtype=dtype, mode="w+", shape=features.shape)
    mapped[:] = features
    mapped.flush()
    selection = select_dpp(features, log_g, 40, 1e-3, None)
    on_disk = select_dpp(np.memmap(tmp_path / "features", dtype=dtype, mode="r", shape=features.shape), log_g, 40, 1e-3)
    assert on_disk.indices.tolist() == selection.indices.tolist()
    assert on_disk.gains.tolist() == selection.gains.tolist()
    assert select_dpp(features.astype(np.float64), log_g, 40, 1e-3).indices.tolist() == selection.indices.tolist()
    with threadpool_limits(limits=2):
        assert select_dpp(features, log_g, 40, 1e-3).gains.tolist() == selection.gains.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_stops_at_the_rank_and_not_at_its_rounding(dtype):
    rng = np.random.default_rng(2)
    features = unit(rng.normal(size=(2000, 20)) @ rng.normal(size=(20, 64))).astype(dtype)
    selection = select_dpp(features, np.zeros(2000), 50, ridge=0.0)
    assert len(selection.indices) == 20
    assert "20 of 50" in selection.shortfall
    assert "rank 20" in selection.shortfall
    with_ridge = select_dpp(features, np.zeros(2000), 50, ridge=1e-3)
    assert with_ridge.shortfall is None
    assert len(set(with_ridge.indices.tolist())) == 50


def test_more_items_wanted_than_dimensions_without_a_ridge():
    features = unit(np.random.default_rng(3).normal(size=(100, 6)))
    assert len(select_dpp(features, np.zeros(100), 50, ridge=0.0).indices) == 6


def test_a_tiny_ridge_stays_finite_and_distinct():
    features = make_features("duplicates", 40, 5, np.random.default_rng(4))
    for ridge in (1e-8, 1e-14, 1e-30):
        selection = select_dpp(features, np.zeros(40), 30, ridge)
        assert len(set(selection.indices.tolist())) == 30
        assert np.isfinite(selection.log_det)


def test_hand_computed():
    # Rows e1, e1, (e1 + e2)/√2 with g = 1, 1, 0.5 and λ = 0: r = 1, 1, 1/4; after e1: 0, 0, 1/8.
    features = np.array([[1.0, 0.0], [1.0, 0.0], [np.sqrt(0.5), np.sqrt(0.5)]])
    selection = select_dpp(features, np.log([1.0, 1.0, 0.5]), 3, 0.0, ["b", "a", "c"])
    assert selection.indices.tolist() == [1, 2]
    np.testing.assert_allclose(selection.gains, [1.0, 0.125])
    assert selection.log_det == pytest.approx(np.log(0.125))


def test_relevance_that_underflows_still_ranks():
    selection = select_dpp(np.eye(3), np.array([-2000.0, -1000.0, -1500.0]), 3, 1e-3)
    assert selection.indices.tolist() == [1, 2, 0]
    assert selection.log_det == pytest.approx(-9000 + 3 * np.log1p(1e-3))


def test_nothing_to_pick():
    never = select_dpp(np.eye(3), np.full(3, -np.inf), 2, 1e-3)
    assert len(never.indices) == 0
    assert "0 of 2" in never.shortfall
    assert never.log_det == 0.0
    assert "0 of 2" in select_dpp(np.empty((0, 4)), np.empty(0), 2, 1e-3).shortfall


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, 1e300])
@pytest.mark.parametrize("row", [0, 1500])
def test_a_bad_row_is_named(value, row):
    features = unit(np.random.default_rng(0).normal(size=(2000, 4)))
    features[row] = value
    with pytest.raises(InputError, match=rf"Row {row} of the pool"):
        select_dpp(features, np.zeros(2000), 5, 1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.1])
def test_a_bad_score_is_named(value):
    log_g = np.zeros(9)
    log_g[7] = value
    with pytest.raises(InputError, match="row 7 of the pool"):
        select_dpp(np.eye(9), log_g, 5, 1e-3)


def test_other_wrong_arguments():
    for size, ridge, hashes, words in (
        (0, 1e-3, None, "at least 1"),
        (2, -1.0, None, "ridge"),
        (2, 1e-300, None, "ridge"),
        (2, float("nan"), None, "ridge"),
        (2, float("inf"), None, "ridge"),
        (2, 1e-3, ["a"], "content hashes"),
    ):
        with pytest.raises(InputError, match=words):
            select_dpp(np.eye(3), np.zeros(3), size, ridge, hashes)
