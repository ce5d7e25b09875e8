"""The baselines: relevance alone and chance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collegium.core.errors import InputError
from collegium.selection.baselines import select_random, select_similarity


def test_similarity_takes_the_most_relevant_and_breaks_ties_by_hash():
    selection = select_similarity(np.log([0.5, 0.9, 0.5, 0.1]), 3, ["c", "d", "a", "b"])
    assert selection.indices.tolist() == [1, 2, 0]
    np.testing.assert_allclose(selection.gains, [0.81, 0.25, 0.25])
    assert selection.log_det == pytest.approx(np.log(0.81 * 0.25 * 0.25))
    assert selection.shortfall is None


def test_similarity_keeps_the_order_of_saturated_items():
    log_g = -np.array([1e-30, 1e-200, 0.0, 1e-17])  # every g is 1.0 in float64
    assert select_similarity(log_g, 4, None).indices.tolist() == [2, 1, 0, 3]


def test_similarity_never_picks_the_impossible():
    selection = select_similarity(np.array([-np.inf, -1.0, -np.inf]), 2, None)
    assert selection.indices.tolist() == [1]
    assert "1 of 2" in selection.shortfall


@given(num_items=st.integers(0, 40), size=st.integers(1, 50), random_seed=st.integers(0, 2**31))
def test_random_is_distinct_complete_and_repeatable(num_items, size, random_seed):
    selection = select_random(num_items, size, random_seed)
    assert len(set(selection.indices.tolist())) == len(selection.indices) == min(num_items, size)
    assert set(selection.indices.tolist()) <= set(range(num_items))
    assert (selection.shortfall is None) == (size <= num_items)
    assert select_random(num_items, size, random_seed).indices.tolist() == selection.indices.tolist()


def test_random_is_fair():
    counts = np.zeros(10)
    for random_seed in range(2000):
        counts[select_random(10, 3, random_seed).indices] += 1
    # Each item is in 600 of 2,000 draws, ± 20.5 standard deviation: five of them.
    assert (np.abs(counts - 600) < 103).all()


def test_wrong_arguments():
    with pytest.raises(InputError, match="at least 1"):
        select_random(5, 0, 0)
    with pytest.raises(InputError, match="at least 1"):
        select_similarity(np.zeros(2), 0, None)
    with pytest.raises(InputError, match="row 1"):
        select_similarity(np.array([-1.0, np.nan]), 1, None)
    with pytest.raises(InputError, match="content hashes"):
        select_similarity(np.zeros(2), 1, ["a"])
