"""Told and union accuracy on embeddings made by hand."""

import numpy as np
import pytest
import torch

from collegium.core.errors import DataError
from collegium.data.examples import Examples
from collegium.evaluation.evaluate import Correct, Domain, accuracies, evaluate, grade, make_domain
from collegium.models.tasks import ClassSet, class_set

DOMAINS = {"farm": ("a {label}", ["cow", "wheat"]), "port": ("the {label}", ["hull", "wave"])}

NAMES = (("farm", "animal"), ("farm", "plant"), ("port", "ship"), (":pool", "thing"))
CLASSES = ClassSet(NAMES, torch.eye(4), 1.0)


def answers(*rows, domain="farm", targets):
    embeddings = np.array(rows, dtype=np.float32)
    return grade(embeddings, Domain(domain, ["text"] * len(rows), np.array(targets)), CLASSES)


def test_told_lets_only_the_own_labels_compete_and_union_all():
    found = answers([0.9, 0.1, 0.0, 0.0], [0.5, 0.4, 0.8, 0.0], [0.1, 0.2, 0.7, 0.0], targets=[0, 0, 0])
    assert found.told.tolist() == [True, True, False]
    assert found.union.tolist() == [True, False, False]


def test_the_pools_classes_never_compete():
    found = answers([0.2, 0.1, 0.0, 0.9], targets=[0])
    assert found.told.tolist() == [True]
    assert found.union.tolist() == [True]


def test_a_domain_whose_classes_come_last_is_told_by_its_own_indices():
    found = answers([0.9, 0.0, 0.1, 0.0], [0.0, 0.1, 0.3, 0.9], domain="port", targets=[2, 2])
    assert found.told.tolist() == [True, True]
    assert found.union.tolist() == [False, True]


def test_the_mean_counts_domains_alike_whatever_their_size():
    big, small = np.array([True] * 9 + [False]), np.array([True, False])
    found = accuracies({"big": Correct(told=big, union=~big), "small": Correct(told=small, union=small)})
    assert found.told == pytest.approx({"big": 0.9, "small": 0.5, "mean": 0.7})
    assert found.union == pytest.approx({"big": 0.1, "small": 0.5, "mean": 0.3})


def test_evaluate_answers_with_the_closest_class(seed):
    classes = class_set(
        seed, {"farm": ("a {label}", ["cow", "wheat"]), "port": ("the {label}", ["hull", "wave"])}, 20.0
    )
    texts = ["a cow", "a wheat", "the hull"]
    domains = [Domain("farm", texts, np.array([0, 1, 2]))]
    found = evaluate(seed, domains, classes, batch_size=2)["farm"]
    assert found.told.tolist() == [True, True, False]  # the texts are the classes' own sentences
    assert found.union.tolist() == [True, True, True]
    by_hand = grade(classes.logits(seed, texts), domains[0], classes)
    assert by_hand.union.tolist() == found.union.tolist()


def test_targets_are_indices_into_all_classes():
    domain = make_domain("port", Examples(["a", "b"], ["ship", "ship"]), CLASSES, "")
    assert domain.targets.tolist() == [2, 2]
    assert domain.texts == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "labels", "got", "expected"),
    [
        ("farm", ["animal", "machine"], "machine", "animal, plant"),
        ("farm", None, "no labels", "animal, plant"),
        ("mine", ["gold"], "gold", "give --seed-model"),
        ("farm", ["ship"], "ship", "animal, plant"),  # another domain's label
    ],
)
def test_labels_that_the_model_does_not_know_are_named(name, labels, got, expected):
    with pytest.raises(DataError, match=f"The data of {name} hold labels that the model does not know") as error:
        make_domain(name, Examples(["text"] * len(labels or ["one"]), labels), CLASSES, "")
    assert got in error.value.got
    assert expected in error.value.expected
