"""Intervals of accuracies against an independent computation, and at the ends."""

import numpy as np
import pytest
from scipy.stats import beta

from collegium.evaluation.evaluate import Correct
from collegium.evaluation.intervals import accuracy_intervals


def correct(right, total):
    answers = np.arange(total) < right
    return Correct(told=answers, union=answers)


@pytest.mark.parametrize(("right", "total"), [(70, 100), (3, 10), (49, 50)])
def test_jeffreys_interval(right, total):
    low, high = accuracy_intervals({"farm": correct(right, total)})["union"]["farm"]
    expected = beta.ppf([0.025, 0.975], right + 0.5, total - right + 0.5)
    assert [low, high] == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("right", [0, 50])
def test_an_accuracy_lies_in_its_own_interval(right):
    low, high = accuracy_intervals({"farm": correct(right, 50)})["union"]["farm"]
    assert low <= right / 50 <= high
    assert 0.02 < high - low < 0.1


def test_the_mean_of_equal_domains_is_surer_than_one_of_them():
    found = accuracy_intervals({name: correct(60, 100) for name in ("a", "b", "c", "d")})["told"]
    widths = {name: high - low for name, (low, high) in found.items()}
    assert widths["mean"] == pytest.approx(widths["a"] / 2, rel=0.1)


def test_the_same_answers_give_the_same_interval():
    answers = {"farm": correct(6, 10)}
    assert accuracy_intervals(answers) == accuracy_intervals(answers)
