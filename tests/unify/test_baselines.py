"""Baselines on the same experts: averages, ensembles, and references that see all private data."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from collegium.core.recipe import TrainingSettings
from collegium.data.examples import load_splits
from collegium.flow.simulate import owner_recipe
from collegium.models.encoder import embed_texts
from collegium.models.expert_tensors import dense_model, ffn_tensors
from collegium.owner.validate import read_contribution
from collegium.unify.baselines import fedavg as fedavg_module
from collegium.unify.baselines import not_private
from collegium.unify.baselines import soup as soups
from collegium.unify.baselines.btm import domain_posterior, mixed, most_likely
from collegium.unify.baselines.fedavg import _rounds, fedavg
from collegium.unify.baselines.not_private import btx, pooled
from collegium.unify.baselines.soup import CANDIDATES, SCALES, searched_soup, soup, task_arithmetic
from collegium.unify.routed_model import gather, routed_model

TEXTS = ["the old cow", "hull mast keel sail near far", "wheat barley"]


@pytest.fixture(scope="module")
def ingredients(charter, seed, pool, contributions):
    checked = [read_contribution(path, charter, pool, seed) for path in contributions.values()]
    return gather(charter, seed, pool, checked)


@pytest.fixture(scope="module")
def private(make_recipe):
    recipe = make_recipe()
    found = {}
    for name in recipe.owners:
        owner = owner_recipe(recipe, name)
        found[name] = load_splits(owner.data, owner.columns, owner.limits, recipe.random_seed, name).train
    return found


def test_a_soup_is_the_weighted_average():
    first, second = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([3.0, 6.0])}
    torch.testing.assert_close(soup([first, second])["a"], torch.tensor([2.0, 4.0]))
    torch.testing.assert_close(soup([first, second], [0.25, 0.75])["a"], torch.tensor([2.5, 5.0]))
    torch.testing.assert_close(soup([first, second], [1.0, 0.0])["a"], first["a"])


def test_the_searched_soup_takes_the_weights_that_answer_the_proxies_best(ingredients, monkeypatch):
    experts = list(ingredients.experts.values())
    seen = []
    given = iter([0.5, 0.9] + [0.2] * CANDIDATES)
    monkeypatch.setattr(soups, "proxy_accuracy", lambda model, proxies: next(given))
    monkeypatch.setattr(soups, "dense_model", lambda seed, tensors: seen.append(tensors) or dense_model(seed, tensors))
    found, weights = searched_soup(ingredients)
    assert len(seen) == CANDIDATES
    assert sum(weights) == pytest.approx(1)
    assert weights != [0.5, 0.5]
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, weights[0] * experts[0][name] + weights[1] * experts[1][name])
        torch.testing.assert_close(seen[0][name], (experts[0][name] + experts[1][name]) / 2)  # uniform comes first


def test_of_equally_good_soups_the_uniform_one_stays(ingredients, monkeypatch):
    monkeypatch.setattr(soups, "proxy_accuracy", lambda model, proxies: 0.5)
    assert searched_soup(ingredients)[1] == [0.5, 0.5]


def test_task_arithmetic_adds_the_scaled_changes(ingredients, seed):
    found, (scale,) = task_arithmetic(ingredients)
    assert scale in SCALES
    own = ffn_tensors(seed, [1, 2])
    for name, tensor in found.items():
        changes = sum(expert[name] - own[name] for expert in ingredients.experts.values())
        torch.testing.assert_close(tensor, own[name] + scale * changes, atol=1e-6, rtol=0)


def test_an_ensemble_mixes_probabilities():
    generator = np.random.default_rng(0)
    logits = [generator.normal(size=(4, 3)).astype(np.float32) for _ in range(2)]
    weights = generator.dirichlet([1, 1], size=4)
    expected = sum(weights[:, [i]] * softmax(one.astype(np.float64), axis=1) for i, one in enumerate(logits))
    np.testing.assert_allclose(np.exp(mixed(logits, weights)), expected, atol=1e-12)
    alone = np.array([[1.0, 0.0]] * 4)
    np.testing.assert_allclose(np.exp(mixed(logits, alone)), softmax(logits[0].astype(np.float64), axis=1), atol=1e-7)


def test_the_posterior_is_the_routers_own_decision(ingredients):
    posterior = domain_posterior(ingredients, TEXTS)
    np.testing.assert_allclose(posterior.sum(axis=1), 1)
    model, _ = routed_model(ingredients)
    inputs = ingredients.seed.tokenise(TEXTS)
    with torch.inference_mode():
        (routing,) = model(**inputs, output_routing=True).routings.values()
    np.testing.assert_array_equal(posterior.argmax(axis=1), routing.experts[:, 0, 0].numpy())


def test_the_likeliest_experts_share_the_weight():
    posterior = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    np.testing.assert_allclose(most_likely(posterior, 2), [[0.625, 0.375, 0], [1 / 9, 0, 8 / 9]])
    np.testing.assert_allclose(most_likely(posterior, 1), [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_allclose(most_likely(posterior, 3), posterior)


def test_btx_tunes_the_same_mixture_on_private_examples(ingredients, private, monkeypatch):
    seen = []
    true = not_private.jointly_tuned
    monkeypatch.setattr(
        not_private, "jointly_tuned", lambda model, proxies, *rest: seen.append(proxies) or true(model, proxies, *rest)
    )
    tuned = btx(ingredients, private)
    (examples,) = seen
    assert examples.items == [*private["farm"].texts, *private["port"].texts]
    assert examples.owners.argmax(axis=1).tolist() == [0] * len(private["farm"]) + [1] * len(private["port"])
    start, _ = routed_model(ingredients)
    assert any(not torch.equal(a, b) for a, b in zip(start.state_dict().values(), tuned.state_dict().values()))


def test_the_pooled_model_learns_all_domains_with_the_budget_of_all(ingredients, private, seed, monkeypatch):
    seen = []
    true = not_private.train_expert
    monkeypatch.setattr(
        not_private, "train_expert", lambda *given, **named: seen.append(given) or true(*given, **named)
    )
    tensors, classes = pooled(ingredients, ingredients.classes, private)
    _, exercises, settings, layers, _ = seen[0]
    training = ingredients.charter.terms.training
    assert settings.steps == (training.steps and 2 * training.steps)
    assert settings.epochs == training.epochs
    assert len(exercises) == len(private["farm"]) + len(private["port"])
    assert list(layers) == [1, 2]
    assert classes is ingredients.classes
    assert abs(embed_texts(dense_model(seed, tensors), TEXTS) - embed_texts(seed, TEXTS)).max() > 0.01


def test_fedavg_averages_by_examples_and_goes_on_from_the_average(ingredients, private, seed, monkeypatch):
    seen = []
    true = fedavg_module.train_expert

    def spy(start, exercises, settings, layers, random_seed, head_rows):
        expert = true(start, exercises, settings, layers, random_seed, head_rows=head_rows)
        seen.append((start, len(exercises), settings, random_seed, expert.tensors))
        return expert

    monkeypatch.setattr(fedavg_module, "train_expert", spy)
    uneven = {"farm": private["farm"], "port": private["port"].take(range(len(private["farm"]) // 3))}
    tensors, classes = fedavg(ingredients, ingredients.classes, uneven)
    assert classes is ingredients.classes
    rounds = [seen[index : index + 2] for index in range(0, len(seen), 2)]
    shares = [len(uneven[name]) / sum(map(len, uneven.values())) for name in uneven]
    averages = [soup([update for *_, update in one], shares) for one in rounds]
    assert all(torch.equal(tensors[name], averages[-1][name]) for name in tensors)
    for (start, *_), average in zip([one[0] for one in rounds[1:]], averages):
        own = ffn_tensors(start, [1, 2])
        assert all(torch.equal(own[name], average[name]) for name in average)
    assert rounds[0][0][0] is seed
    assert len({random_seed for *_, random_seed, _ in seen}) == len(seen)  # no two trainings draw the same order


@pytest.mark.parametrize(("steps", "rounds"), [(36, [6] * 6), (8, [2, 2, 1, 1, 1, 1]), (3, [1] * 6)])
def test_the_rounds_of_fedavg_have_the_budget_of_one_expert(steps, rounds):
    training = TrainingSettings(steps=steps, learning_rate=1e-3)
    found = _rounds(training, 100)
    assert [settings.steps for settings in found] == rounds
    rates = [settings.learning_rate for settings in found]
    assert rates[0] == 1e-3
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(1e-3 / 6)
    assert _rounds(TrainingSettings(epochs=3, batch_size=32), 100)[0].steps == 2  # 12 steps in 6 rounds
