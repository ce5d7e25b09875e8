"""k-centre and facility location are their plain greedy, computed densely."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collegium.core.errors import InputError
from collegium.selection import facility_location, k_centre, lazy
from collegium.selection.facility_location import select_facility_location
from collegium.selection.k_centre import select_k_centre

STRATEGIES = {"k-centre": select_k_centre, "facility-location": select_facility_location}


def make_pool(kind, num_items, dim, seed):
    rng = np.random.default_rng(seed)
    few = max(1, num_items // 3)
    features = rng.normal(size=(few if kind == "duplicates" else num_items, dim))
    features = features[rng.integers(few, size=num_items)] if kind == "duplicates" else features
    if kind != "not unit-norm":
        features = features / np.linalg.norm(features, axis=1, keepdims=True)
    log_g = np.log(rng.uniform(0.05, 1, num_items))
    log_g[rng.random(num_items) < 0.2] = -np.inf
    if kind == "equal":
        log_g = np.full(num_items, -0.3)
    return features, log_g, [f"{number:06x}" for number in rng.permutation(num_items)]


def naive(strategy, features, log_g, size, hashes):
    """Every value anew for every pick; ties: relevance, then hash."""
    g = np.exp(log_g)
    rows = [i for i in range(len(g)) if g[i] > 0]
    picks, gains = [], []
    while len(picks) < min(size, len(rows)):
        values = {}
        for i in rows:
            if strategy == "k-centre":
                near = min((np.linalg.norm(features[i] - features[s]) for s in picks), default=np.inf)
                values[i] = g[i] * (near if near > 1e-7 else 0.0) if picks else g[i]
            else:
                covered = [max([0.0, *(features[v] @ features[s] for s in picks)]) for v in rows]
                values[i] = sum(
                    g[v] * max(0.0, features[v] @ features[i] - old) for v, old in zip(rows, covered, strict=True)
                )
        rest = [i for i in rows if i not in picks]
        best = max(values[i] for i in rest)
        ties = [i for i in rest if values[i] >= best - 1e-9]
        winner = min(ties, key=lambda i: (-log_g[i], hashes[i]))
        gains.append(np.inf if strategy == "k-centre" and not picks else values[winner])
        picks.append(winner)
    return picks, gains


@settings(max_examples=120)
@given(
    strategy=st.sampled_from(list(STRATEGIES)),
    kind=st.sampled_from(["random", "duplicates", "not unit-norm", "equal"]),
    num_items=st.integers(1, 14),
    dim=st.integers(1, 5),
    size=st.integers(1, 10),
    block=st.sampled_from([1, 3, 64]),
    seed=st.integers(0, 2**31),
)
def test_the_lazy_greedy_is_the_plain_greedy(strategy, kind, num_items, dim, size, block, seed):
    features, log_g, hashes = make_pool(kind, num_items, dim, seed)
    with (
        mock.patch.object(lazy, "BLOCK", block),
        mock.patch.object(k_centre, "CHUNK", 3),
        mock.patch.object(facility_location, "CHUNK", 3),
    ):
        selection = STRATEGIES[strategy](features, log_g, size, 0.1, hashes)
    picks, gains = naive(strategy, features, log_g, size, hashes)
    assert selection.indices.tolist() == picks
    np.testing.assert_allclose(selection.gains, gains, atol=1e-7)
    assert (selection.shortfall is None) == (len(picks) == size)
    g = np.exp(log_g[picks])
    dense = g[:, None] * (features[picks] @ features[picks].T + 0.1 * np.eye(len(picks))) * g
    assert selection.log_det == pytest.approx(np.linalg.slogdet(dense)[1], abs=1e-8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_order_of_the_pool_and_the_memory_map_do_not_matter(strategy, tmp_path):
    features, log_g, hashes = make_pool("random", 2500, 16, 0)
    features = features.astype(np.float16)
    order = np.random.default_rng(1).permutation(len(features))
    selection = STRATEGIES[strategy](features, log_g, 60, 1e-3, hashes)
    permuted = STRATEGIES[strategy](features[order], log_g[order], 60, 1e-3, [hashes[i] for i in order])
    assert order[permuted.indices].tolist() == selection.indices.tolist()
    mapped = np.memmap(tmp_path / "features", dtype=np.float16, mode="w+", shape=features.shape)
    mapped[:] = features
    assert STRATEGIES[strategy](mapped, log_g, 60, 1e-3, hashes).indices.tolist() == selection.indices.tolist()


def test_k_centre_hand_computed():
    # After e1: e2 at √2 with g = 0.6 (0.849), −e1 at 2 with g = 0.4 (0.8), e1 again at 0.
    features = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    selection = select_k_centre(features, np.log([1.0, 0.9, 0.6, 0.4]), 4, 1e-3)
    assert selection.indices.tolist() == [0, 2, 3, 1]
    # −e1 is √2 from e2
    np.testing.assert_allclose(selection.gains, [np.inf, 0.6 * np.sqrt(2), 0.4 * np.sqrt(2), 0.0])


def test_facility_location_hand_computed():
    # Weights 1, 1, 0.5: e1 covers both rows of e1 (2), e2 covers 0.5.
    features = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    selection = select_facility_location(features, np.log([1.0, 1.0, 0.5]), 3, 1e-3, ["b", "a", "c"])
    assert selection.indices.tolist() == [1, 2, 0]
    np.testing.assert_allclose(selection.gains, [2.0, 0.5, 0.0])


def test_a_large_pool_is_covered_by_the_lowest_hashes(monkeypatch):
    features, log_g, hashes = make_pool("equal", 60, 8, 3)
    monkeypatch.setattr(facility_location, "COVERED", 10)
    selection = select_facility_location(features, log_g, 5, 1e-3, hashes)
    covered = features[np.argsort(hashes)[:10]]
    best = np.zeros(10)
    for item, gain in zip(selection.indices, selection.gains, strict=True):
        now = np.maximum(best, covered @ features[item])
        assert gain == pytest.approx(np.exp(-0.3) * (now - best).sum())
        assert gain == pytest.approx(
            max(np.exp(-0.3) * np.maximum(covered @ row - best, 0).sum() for row in features), abs=1e-12
        )
        best = now


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_relevance_far_below_the_smallest_number_still_ranks(strategy):
    log_g = np.array([-900.0, -5000.0, -4000.0])
    selection = STRATEGIES[strategy](np.eye(3), log_g, 3, 1e-3)
    assert selection.indices.tolist() == [0, 2, 1]
    assert selection.log_det == pytest.approx(-19800 + 3 * np.log1p(1e-3))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_to_pick_and_wrong_inputs(strategy):
    select = STRATEGIES[strategy]
    never = select(np.eye(3), np.full(3, -np.inf), 2, 1e-3)
    assert (len(never.indices), never.log_det) == (0, 0.0)
    assert "0 of 2" in never.shortfall
    assert "0 of 2" in select(np.empty((0, 4)), np.empty(0), 2, 1e-3).shortfall
    features = np.ones((2000, 2))
    features[1700] = 0.0
    with pytest.raises(InputError, match="Row 1700 of the pool"):
        select(features, np.zeros(2000), 2, 1e-3)
    with pytest.raises(InputError, match="row 1 of the pool"):
        select(np.eye(2), np.array([0.0, np.nan]), 2, 1e-3)
    with pytest.raises(InputError, match="content hashes"):
        select(np.eye(2), np.zeros(2), 2, 1e-3, ["a"])
    with pytest.raises(InputError, match="at least 1"):
        select(np.eye(2), np.zeros(2), 0, 1e-3)
