"""The prior of the labels by EM: what it is at its fixed point, and what it does to answers."""

import numpy as np
import pytest
from scipy.special import log_softmax

from collegium.federated.label_prior import with_label_prior


def test_two_examples_by_hand():
    """One class is likely for both: the prior goes to it, as far as the other one is not needed."""
    found = np.exp(with_label_prior(np.log(np.array([[0.9, 0.1], [0.6, 0.4]]))))
    np.testing.assert_allclose(found, [[1, 0], [1, 0]], atol=0.02)


def test_the_answers_are_those_of_their_own_mean():
    random = np.random.default_rng(0)
    answers = log_softmax(2 * random.normal(size=(200, 5)), axis=1)
    found = with_label_prior(answers)
    prior = np.exp(found).mean(axis=0)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(np.exp(log_softmax(answers + np.log(prior), axis=1)), np.exp(found), atol=1e-3)


def test_a_client_with_two_classes_is_answered_better_and_one_with_all_as_before():
    random = np.random.default_rng(1)

    def right(classes):
        labels = random.choice(classes, size=300)
        scores = random.normal(size=(300, 10))
        scores[np.arange(300), labels] += 2  # of Gaussian scores with unit variance: the logit is 2 · score
        answers = log_softmax(2 * scores, axis=1)
        return [(one.argmax(axis=1) == labels).mean() for one in (answers, with_label_prior(answers))]

    plain, with_prior = right([2, 7])
    assert with_prior > plain + 0.15
    plain, with_prior = right(range(10))
    assert with_prior > plain - 0.03


def test_an_answer_that_is_certain_stays():
    answers = np.log(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32) + 1e-30)
    found = np.exp(with_label_prior(answers))
    assert found == pytest.approx(np.eye(2))
