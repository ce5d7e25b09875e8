"""Routers in closed form, against independent computations (METHODS §6)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from collegium.moe.router import Router
from collegium.selection.pool import is_held_out
from collegium.unify import router_init
from collegium.unify.router_init import (
    WIDEST,
    PoolStatistics,
    RouterWeights,
    fit_temperature,
    initial_router,
    pool_statistics,
    set_router,
)

DIM, OWNERS = 6, 3


def make_world(random_seed=0):
    rng = np.random.default_rng(random_seed)
    root = rng.normal(size=(DIM, DIM))
    pool = PoolStatistics(rng.normal(size=DIM), root @ root.T + 0.1 * np.eye(DIM))
    return pool, pool.mean + rng.normal(size=(OWNERS, DIM)), rng


def test_lda_is_the_discriminant_of_gaussians_around_the_pools_mean():
    pool, vectors, rng = make_world()
    found = initial_router("lda", vectors, pool, 0.5, None)
    regularised = pool.covariance + 0.5 * np.trace(pool.covariance) / DIM * np.eye(DIM)
    precision = np.linalg.inv(regularised)
    means = rng.normal(size=(50, DIM))
    densities = np.array(
        [[-0.5 * (z - r) @ precision @ (z - r) + 0.5 * (z - pool.mean) @ precision @ (z - pool.mean) for r in vectors]
         for z in means]
    )  # fmt: skip
    np.testing.assert_allclose(found.logits(means), densities, rtol=1e-9, atol=1e-9)
    assert found.weight.dtype == np.float64


def test_lda_classifies_gaussian_classes_as_scikit_learn_does():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(DIM, DIM))
    covariance = root @ root.T
    truth = rng.normal(scale=2.0, size=(OWNERS, DIM))
    labels = rng.integers(OWNERS, size=3000)
    points = truth[labels] + rng.multivariate_normal(np.zeros(DIM), covariance, size=3000)
    train, test = slice(0, 1500), slice(1500, 3000)
    vectors = np.stack([points[train][labels[train] == owner].mean(axis=0) for owner in range(OWNERS)])
    within = np.cov((points[train] - vectors[labels[train]]).T)
    found = initial_router("lda", vectors, PoolStatistics(points[train].mean(axis=0), within), 1e-9, None)
    theirs = LinearDiscriminantAnalysis(priors=[1 / OWNERS] * OWNERS).fit(points[train], labels[train])
    agreement = (found.logits(points[test]).argmax(axis=1) == theirs.predict(points[test])).mean()
    assert agreement > 0.995
    assert theirs.score(points[test], labels[test]) > 0.8, "the classes must be separable for the test to say something"


def test_whitened_is_the_cosine_where_the_pool_is_white():
    pool, vectors, rng = make_world()
    found = initial_router("whitened", vectors, pool, 0.5, None)
    regularised = pool.covariance + 0.5 * np.trace(pool.covariance) / DIM * np.eye(DIM)
    values, axes = np.linalg.eigh(regularised)
    whiten = axes @ np.diag(values**-0.5) @ axes.T
    white, means = (vectors - pool.mean) @ whiten, rng.normal(size=(40, DIM))
    directions = white / np.linalg.norm(white, axis=1, keepdims=True)
    np.testing.assert_allclose(found.logits(means), (means - pool.mean) @ whiten @ directions.T, rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=OWNERS, max_size=OWNERS), st.integers(0, 1000))
def test_dilution_by_proxies_never_changes_where_whitened_sends_a_text(shares, random_seed):
    pool, vectors, rng = make_world(random_seed)
    diluted = pool.mean + np.array(shares)[:, None] * (vectors - pool.mean)  # proxies whose mean is the pool's
    means = pool.mean + 3 * rng.normal(size=(30, DIM))
    before = initial_router("whitened", vectors, pool, 0.5, None)
    after = initial_router("whitened", diluted, pool, 0.5, None)
    np.testing.assert_allclose(after.weight, before.weight, rtol=1e-7, atol=1e-9)
    best = np.sort(before.logits(means), axis=1)
    clear = best[:, -1] - best[:, -2] > 1e-6
    np.testing.assert_array_equal(after.logits(means).argmax(axis=1)[clear], before.logits(means).argmax(axis=1)[clear])


def test_dilution_changes_where_lda_sends_a_text():
    pool, vectors, rng = make_world()
    diluted = pool.mean + np.array([0.1, 1.0, 1.0])[:, None] * (vectors - pool.mean)
    means = pool.mean + 3 * rng.normal(size=(200, DIM))
    before, after = (initial_router("lda", one, pool, 0.5, None).logits(means) for one in (vectors, diluted))
    assert (before.argmax(axis=1) != after.argmax(axis=1)).mean() > 0.1


def test_raw_rows_are_the_vectors_and_normalised_rows_have_length_one():
    pool, vectors, _ = make_world()
    raw = initial_router("raw", vectors, pool, 0.5, None)
    np.testing.assert_array_equal(raw.weight, vectors)
    normalised = initial_router("normalised", vectors, pool, 0.5, None)
    np.testing.assert_allclose(np.linalg.norm(normalised.weight, axis=1), 1)
    np.testing.assert_allclose(normalised.weight * np.linalg.norm(vectors, axis=1)[:, None], vectors)
    for found in (raw, normalised):
        assert not found.bias.any()
        assert not found.centre.any()


@pytest.mark.parametrize("init", ["raw", "normalised", "lda", "whitened"])
def test_a_fallback_is_the_last_expert_and_leaves_the_others_alone(init):
    pool, vectors, _ = make_world()
    without = initial_router(init, vectors, pool, 0.5, None)
    found = initial_router(init, vectors, pool, 0.5, -5.0)
    np.testing.assert_array_equal(found.weight[:-1], without.weight)
    np.testing.assert_array_equal(found.bias, [*without.bias, -5.0])
    if init in ("lda", "whitened"):  # logit 0 for every text
        assert not found.weight[-1].any()
    else:
        np.testing.assert_allclose(found.weight[-1], pool.mean / (np.linalg.norm(pool.mean) if init != "raw" else 1))


def test_a_text_at_the_pools_mean_takes_the_lda_fallback():
    pool, vectors, _ = make_world()
    assert initial_router("lda", vectors, pool, 0.5, 0.0).logits(pool.mean[None]).argmax() == OWNERS


@pytest.mark.parametrize("init", ["raw", "normalised", "lda", "whitened"])
def test_case_17_one_owner_has_a_finite_router(init):
    pool, vectors, _ = make_world()
    found = initial_router(init, vectors[:1], pool, 0.5, None)
    assert found.weight.shape == (1, DIM)
    assert np.isfinite(found.weight).all()


def one_hot(labels, width=OWNERS):
    return np.eye(width, dtype=np.float32)[labels]


def test_the_temperature_is_the_best_of_a_grid():
    rng = np.random.default_rng(0)
    labels = rng.integers(OWNERS, size=300)
    logits = 12 * (0.4 * one_hot(labels) + rng.normal(size=(300, OWNERS)) * 0.3).astype(np.float64)
    found = fit_temperature(logits, one_hot(labels))

    def loss(temperature):
        scaled = logits / temperature
        return (np.log(np.exp(scaled).sum(axis=1)) - scaled[np.arange(300), labels]).mean()

    grid = np.geomspace(found / 20, found * 20, 400)
    assert loss(found) <= min(loss(temperature) for temperature in grid) + 1e-6
    assert min(grid) < found < max(grid)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.sampled_from(["right", "wrong", "several"]))
def test_the_temperature_stays_in_its_bounds_and_changes_no_argmax(random_seed, scale, owners):
    rng = np.random.default_rng(random_seed)
    logits = scale * rng.normal(size=(30, OWNERS))
    best = logits.argmax(axis=1)
    targets = {"right": one_hot(best), "wrong": one_hot((best + 1) % OWNERS), "several": 1 - one_hot(best)}[owners]
    found = fit_temperature(logits, targets)
    gap = np.ptp(logits, axis=1).mean()
    assert gap / WIDEST * (1 - 1e-6) <= found <= gap * WIDEST * (1 + 1e-6)
    np.testing.assert_array_equal((logits / found).argmax(axis=1), best)


def test_a_fallback_column_does_not_move_the_temperature():
    rng = np.random.default_rng(0)
    logits, owners = rng.normal(size=(30, OWNERS)), one_hot(rng.integers(OWNERS, size=30))
    with_fallback = np.hstack([logits, np.full((30, 1), 50.0)])
    assert fit_temperature(with_fallback, owners) == fit_temperature(logits, owners)


@pytest.mark.parametrize(
    ("logits", "owners"),
    [
        (np.zeros((0, 2)), np.zeros((0, 2), np.float32)),  # nothing held out
        (np.ones((4, 1)), np.ones((4, 1), np.float32)),  # one owner
        (np.ones((4, 2)), np.ones((4, 2), np.float32)),  # no gap at all
    ],
)
def test_where_nothing_can_be_fitted_the_temperature_is_one(logits, owners):
    assert fit_temperature(logits, owners) == 1.0


def by_plain_loop(seed, texts, layer):
    """float64 mean and covariance of z, each text alone."""
    seen = []
    hook = seed.model.encoder.layer[layer].intermediate.register_forward_pre_hook(
        lambda _, arguments: seen.append(arguments[0][0].double().mean(dim=0).numpy())
    )
    for text in texts:
        seed.model(**seed.tokenise([text]))
    hook.remove()
    return np.mean(seen, axis=0), np.cov(np.array(seen).T, bias=True)


@pytest.mark.parametrize("chunk", [7, 4096])
def test_pool_statistics_are_those_of_a_plain_loop_without_held_out_items(chunk, seed, pool, monkeypatch):
    monkeypatch.setattr(router_init, "CHUNK", chunk)
    found = pool_statistics(seed, pool, [0, 1], held_out_one_in=10)
    rows = [row for row, value in enumerate(pool.hashes) if not is_held_out(value, 10)]
    assert 0 < len(rows) < len(pool)
    for layer, statistics in zip([0, 1], found, strict=True):
        mean, covariance = by_plain_loop(seed, pool.texts(rows), layer)
        np.testing.assert_allclose(statistics.mean, mean, atol=1e-5)
        np.testing.assert_allclose(statistics.covariance, covariance, atol=1e-4)


def test_pool_statistics_take_the_first_items_in_hash_order(seed, pool, monkeypatch):
    monkeypatch.setattr(router_init, "MOST_ITEMS", 25)
    (found,) = pool_statistics(seed, pool, [1], held_out_one_in=10)
    rows = [row for row, value in enumerate(pool.hashes) if not is_held_out(value, 10)][:25]
    np.testing.assert_allclose(found.mean, by_plain_loop(seed, pool.texts(rows), 1)[0], atol=1e-5)


def test_a_models_router_scores_as_the_closed_form_does():
    pool, vectors, rng = make_world()
    weights = initial_router("lda", vectors, pool, 0.5, -1.0)
    weights = RouterWeights(weights.weight, weights.bias, weights.centre, 2.5)
    router = Router(DIM, OWNERS + 1)
    set_router(router, weights, context_weight=0.25)
    assert router.context_weight.item() == 0.25
    means = rng.normal(size=(9, DIM))
    scores = router.scores(torch.from_numpy(means).float().unsqueeze(1), None).squeeze(1)
    np.testing.assert_allclose(scores.detach().numpy(), weights.logits(means), rtol=1e-4, atol=1e-4)
    assert {parameter.dtype for parameter in router.parameters()} == {torch.float32}


@pytest.mark.parametrize("init", ["normalised", "whitened"])
def test_a_routing_vector_without_direction_makes_no_nan(init):
    mean = np.zeros(4)
    pool = PoolStatistics(mean, np.eye(4))
    weights = initial_router(init, np.stack([np.zeros(4), np.ones(4)]), pool, 1.0, None)
    assert np.isfinite(weights.weight).all()
    assert weights.logits(np.ones((1, 4))).argmax() == 1
