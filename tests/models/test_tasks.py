"""Label matching: classes, loss, the seed's answers, and what proxies teach."""

import numpy as np
import pytest
import torch

from collegium.core.errors import InputError
from collegium.models.encoder import embed_texts
from collegium.models.label_exercises import LabelExercises, Targets, label_targets, proxy_targets
from collegium.models.tasks import ClassSet, class_set, matching_loss, seed_answers

SCALE = 20.0


def unit(*shape, random_seed=0):
    generator = torch.Generator().manual_seed(random_seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def classes_of_two_domains(pool=False):
    names = [("farm", "animal"), ("farm", "plant"), ("port", "ship"), ("port", "sea")]
    names += [(":pool", "thing"), (":pool", "place")] if pool else []
    return ClassSet(tuple(names), unit(len(names), 8), SCALE)


def test_classes_are_the_seeds_embeddings_of_the_prompted_names(seed):
    found = class_set(seed, {"farm": ("a {label}", ["cow", "pig"]), "port": ("the {label}", ["hull"])}, SCALE)
    assert found.names == (("farm", "cow"), ("farm", "pig"), ("port", "hull"))
    np.testing.assert_allclose(found.embeddings.numpy(), embed_texts(seed, ["a cow", "a pig", "the hull"]), atol=1e-6)
    assert found.of("farm") == [0, 1]
    assert found.index("port", "hull") == 2
    assert found.domains == ["farm", "port"]


def test_two_classes_with_the_same_prompted_name_are_refused(seed):
    with pytest.raises(InputError, match="same prompted name 'a cow'") as error:
        class_set(seed, {"farm": ("a {label}", ["cow", "pig"]), "port": ("{label}", ["a cow"])}, SCALE)
    assert "farm" in str(error.value)
    assert "port" in str(error.value)


def test_the_loss_is_cross_entropy():
    embeddings, classes = unit(5, 8, random_seed=1), unit(4, 8)
    labels = torch.tensor([0, 3, 1, 2, 2])
    targets = torch.nn.functional.one_hot(labels, 4).float()
    loss = matching_loss(embeddings, classes, targets, torch.ones(5, 4), SCALE)
    expected = torch.nn.functional.cross_entropy(SCALE * embeddings @ classes.T, labels)
    torch.testing.assert_close(loss, expected)
    soft = torch.rand(5, 4).softmax(dim=-1)
    torch.testing.assert_close(
        matching_loss(embeddings, classes, soft, torch.ones(5, 4), SCALE),
        torch.nn.functional.cross_entropy(SCALE * embeddings @ classes.T, soft),
    )


def test_only_allowed_classes_compete_and_others_get_no_gradient():
    embeddings, classes = unit(2, 8, random_seed=1), unit(4, 8).requires_grad_()
    allowed = torch.tensor([[1.0, 1, 0, 0], [1.0, 1, 0, 0]])
    targets = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    loss = matching_loss(embeddings, classes, targets, allowed, SCALE)
    loss.backward()
    torch.testing.assert_close(
        loss, torch.nn.functional.cross_entropy(SCALE * embeddings @ classes[:2].T, torch.tensor([0, 1]))
    )
    assert torch.isfinite(loss)
    assert torch.equal(classes.grad[2:], torch.zeros(2, 8))
    assert (classes.grad[:2].abs().sum(dim=1) > 0).all()


def test_the_seeds_answers_are_probabilities():
    embeddings, classes = unit(6, 8, random_seed=1), unit(4, 8)
    answers = seed_answers(embeddings.numpy(), classes, SCALE)
    assert answers.dtype == np.float32
    np.testing.assert_allclose(answers.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(answers, (SCALE * embeddings @ classes.T).softmax(dim=-1), atol=1e-6)


def test_without_pool_labels_a_proxy_teaches_the_seeds_answer_over_all_classes():
    classes, embeddings = classes_of_two_domains(), unit(3, 8, random_seed=1).numpy()
    for labels, domain in ((None, None), (["thing"] * 3, None)):
        targets = proxy_targets(embeddings, labels, classes, domain)
        np.testing.assert_array_equal(targets.probabilities, seed_answers(embeddings, classes.embeddings, SCALE))
        np.testing.assert_array_equal(targets.allowed, np.ones((3, 4)))


def test_without_pool_labels_but_with_classes_of_the_pool_the_seed_answers_among_these():
    classes, embeddings = classes_of_two_domains(pool=True), unit(3, 8, random_seed=1).numpy()
    targets = proxy_targets(embeddings, None, classes, ":pool")
    answers = seed_answers(embeddings, classes.embeddings[4:], SCALE)
    np.testing.assert_array_equal(targets.probabilities, np.hstack([np.zeros((3, 4)), answers]))
    np.testing.assert_array_equal(targets.allowed, [[0, 0, 0, 0, 1, 1]] * 3)


def test_with_pool_labels_a_proxy_teaches_its_label_among_the_pools_classes():
    classes, embeddings = classes_of_two_domains(pool=True), unit(3, 8, random_seed=1).numpy()
    targets = proxy_targets(embeddings, ["place", "thing", "place"], classes, ":pool")
    assert targets.probabilities.argmax(axis=1).tolist() == [5, 4, 5]
    np.testing.assert_array_equal(targets.probabilities.sum(axis=1), np.ones(3))
    np.testing.assert_array_equal(targets.allowed, [[0, 0, 0, 0, 1, 1]] * 3)


def test_exercises_are_joined_and_picked_by_row(seed):
    classes = classes_of_two_domains()
    both = label_targets([0, 1], classes.of("farm"), classes) + label_targets([3], range(4), classes)
    assert isinstance(both, Targets)
    assert len(both) == 3
    some = LabelExercises(seed, ["the cow", "a pig"], both.take([0, 1]), classes)
    exercises = some + LabelExercises(seed, ["hull"], both.take([2]), classes)
    assert exercises.items == ["the cow", "a pig", "hull"]
    batch = exercises.collate([2, 0])
    assert batch["targets"].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]
    assert batch["allowed"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert exercises.take([2, 0]).items == ["hull", "the cow"]
    assert torch.equal(exercises.take([2, 0]).collate([0, 1])["targets"], batch["targets"])
