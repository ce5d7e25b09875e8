"""Sums of named arrays: by hand, in any order, and refused where they mean nothing."""

import numpy as np
import pytest

from collegium.federated.protocol import Message, below, mean_below, prefixed, sorted_results, weighted_mean, weights_of


def arrays(*values):
    return {"w": np.array(values, dtype=np.float32)}


def test_a_mean_is_weighted_as_by_hand():
    found = weighted_mean([arrays(1, 2), arrays(5, 6), arrays(0, 0)], [1.0, 3.0, 0.0])
    assert found["w"].tolist() == [4.0, 5.0]
    assert found["w"].dtype == np.float32


@pytest.mark.parametrize(
    ("given", "weights"), [([], []), ([arrays(1)], [0.0]), ([arrays(1), {"v": np.ones(1)}], [1.0, 1.0])]
)
def test_what_cannot_be_averaged_is_refused(given, weights):
    with pytest.raises(ValueError, match="averag"):
        weighted_mean(given, weights)


def test_results_are_taken_by_client_whatever_the_order_they_came_in():
    messages = [Message(client, 1) for client in (3, 1, 2)]
    assert [one.client for one in sorted_results(messages)] == [1, 2, 3]
    with pytest.raises(ValueError, match="two results"):
        sorted_results([Message(1, 1), Message(1, 1)])
    late = sorted_results([Message(1, 2), Message(0, 2), Message(1, 1)])  # one client, two rounds
    assert [(one.client, one.server_round) for one in late] == [(0, 2), (1, 1), (1, 2)]


def test_a_late_result_weighs_less():
    results = [Message(1, 5, prefixed(arrays(1, 0), "e")), Message(2, 2, prefixed(arrays(4, 6), "e")), Message(3, 5)]
    assert weights_of(results, 5) == [1.0, 0.5, 1.0]
    assert mean_below(results, "e", 5)["w"].tolist() == [2.0, 2.0]  # (1 + 4 / 2) / 1.5, (0 + 6 / 2) / 1.5
    assert mean_below(results, "f", 5) is None


def test_names_go_below_a_prefix_and_come_back():
    named = prefixed(arrays(1), "expert/1")
    assert list(named) == ["expert/1/w"]
    assert below({**named, **prefixed(arrays(2), "expert/10")}, "expert/1").keys() == {"w"}
    assert Message(0, 1, {"w": np.zeros((2, 3), np.float32)}).nbytes == 24
