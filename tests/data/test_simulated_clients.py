"""Held-out clients and clients whose labels mean something else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collegium.core.errors import InputError
from collegium.data.simulated_clients import concept_shift, split_clients


@given(num_clients=st.integers(2, 200), share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_every_client_is_in_training_or_test_and_neither_is_empty(num_clients, share, seed):
    train, test = split_clients(num_clients, share, seed)
    assert sorted([*train, *test]) == list(range(num_clients))
    assert len(train) > 0
    assert len(test) > 0
    assert abs(len(test) - share * num_clients) <= 1


def test_another_random_seed_holds_other_clients_out():
    first, again, other = (split_clients(100, 0.2, seed)[1].tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len(first) == 20


@pytest.mark.parametrize(("num_clients", "share"), [(1, 0.5), (10, 0.0), (10, 1.0), (10, float("nan"))])
def test_a_split_without_clients_on_both_sides_is_refused(num_clients, share):
    with pytest.raises(InputError, match="share above 0 and below 1"):
        split_clients(num_clients, share, 0)


@given(data=st.data(), num_classes=st.integers(1, 12), seed=st.integers(0, 99))
def test_clients_of_a_group_share_a_permutation_and_groups_disagree_on_every_class(data, num_classes, seed):
    groups = data.draw(st.integers(1, num_classes))
    num_clients = data.draw(st.integers(groups, 30))
    labels = concept_shift(num_clients, num_classes, groups, seed)
    assert (np.sort(labels, axis=1) == np.arange(num_classes)).all()
    assert (labels[0] == np.arange(num_classes)).all()
    for client in range(num_clients):
        assert (labels[client] == labels[client % groups]).all()
    for group in range(groups):
        for other in range(group):
            assert (labels[group] != labels[other]).all()


def test_another_random_seed_permutes_otherwise():
    first, again, other = (concept_shift(4, 10, 4, seed) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(("num_clients", "num_classes", "groups"), [(10, 3, 4), (3, 10, 4), (3, 3, 0)])
def test_groups_that_cannot_all_differ_are_refused(num_clients, num_classes, groups):
    with pytest.raises(InputError, match="no more groups than classes or clients"):
        concept_shift(num_clients, num_classes, groups, 0)
