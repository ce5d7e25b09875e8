"""Biases of owners' experts: never positive, and as low as the public texts ask for."""

import json

import numpy as np
import pytest

from collegium.core.recipe import Recipe
from collegium.core.router_settings import RouterSettings
from collegium.owner.validate import read_contribution
from collegium.unify.routed_model import gather, routed_model
from collegium.unify.router_bias import non_positive_biases

OWNERS = np.array([[1, 0]] * 30 + [[0, 1]] * 30 + [[0, 0]] * 40, dtype=np.float32)


def clusters(push):
    """Scores that know the right expert, with `push` added to those of the first owner."""
    right = np.hstack([OWNERS, 1 - OWNERS.sum(axis=1, keepdims=True)])
    logits = 4.0 * right + np.random.default_rng(0).normal(size=right.shape)
    return logits + np.array([push, 0.0, 0.0])


def test_an_expert_that_is_taken_too_often_is_held_back():
    biases = non_positive_biases(clusters(push=6.0), OWNERS)
    assert biases[0] == pytest.approx(-6.0, abs=1.0)
    taken = (clusters(6.0) + np.append(biases, 0.0)).argmax(axis=1)
    assert ((taken == 0) == (OWNERS[:, 0] == 1)).mean() > 0.9
    assert ((clusters(6.0).argmax(axis=1) == 0) == (OWNERS[:, 0] == 1)).mean() < 0.7


def test_an_expert_that_is_taken_too_seldom_stays_as_it_is():
    biases = non_positive_biases(clusters(push=-6.0), OWNERS)
    assert biases[0] == 0.0
    assert (biases <= 0).all()


def test_the_models_routers_have_them(charter, seed, pool, contributions):
    checked = [read_contribution(path, charter, pool, seed) for path in contributions.values()]
    ingredients = gather(charter, seed, pool, checked)
    router = charter.terms.router.model_copy(update={"owner_bias": "non-positive", "fallback": True})
    model, _ = routed_model(ingredients, router)
    plain, _ = routed_model(ingredients, router.model_copy(update={"owner_bias": "none"}))
    for layer, found in model.routers.items():
        bias = found.bias.detach().numpy() - plain.routers[layer].bias.detach().numpy()
        assert (bias[:-1] <= 1e-6).all()
        assert bias[-1] == 0


def test_a_bias_against_the_seed_needs_the_seed():
    with pytest.raises(ValueError, match="owner_bias"):
        RouterSettings(owner_bias="non-positive")


def test_the_preset_is_flexolmos(make_recipe, tmp_path):
    recipe: Recipe = make_recipe(router={"preset": "flexolmo"})
    router = recipe.router
    assert (router.init, router.vectors, router.decide, router.context) == (
        "normalised",
        "private",
        "every-layer",
        "token",
    )
    assert router.fallback
    assert router.owner_bias == "non-positive"
    assert json.loads(recipe.model_dump_json())["router"]["preset"] == "flexolmo"
