"""Relevance is cross-fitted, calibrated, ordered where it saturates; the order of inputs does not matter."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from collegium.core.errors import InputError
from collegium.core.recipe import RelevanceSettings
from collegium.selection import relevance as module
from collegium.selection.relevance import log_relevance

SETTINGS = RelevanceSettings()


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def world(rng, *, num_items=1500, num_private=150, dim=24, distance=4.0, share=0.1):
    """A pool of which `share` lies in the private domain, and private rows."""
    direction = np.eye(dim)[0] * distance
    close = rng.random(num_items) < share
    pool = rng.normal(size=(num_items, dim)) + close[:, None] * direction
    return unit(pool), unit(rng.normal(size=(num_private, dim)) + direction), close


def test_no_pool_item_is_scored_by_a_classifier_that_had_it_as_a_negative(monkeypatch):
    pool, private, _ = world(np.random.default_rng(0), num_items=300, num_private=100)
    trained, scored = [], []
    fit, held_out = module._fit, module._held_out

    def watched_fit(features, is_private, inverse_strength, sample_weight=None):
        if sample_weight is None:
            trained.append({row.tobytes() for row in features[is_private == 0]})
        return fit(features, is_private, inverse_strength, sample_weight)

    def watched_held_out(features, folds, weights, biases):
        scored.extend((row.tobytes(), fold) for row, fold in zip(features, folds, strict=True))
        return held_out(features, folds, weights, biases)

    monkeypatch.setattr(module, "_fit", watched_fit)
    monkeypatch.setattr(module, "_held_out", watched_held_out)
    log_relevance(np.concatenate([pool, pool[:50]]), private, SETTINGS, 0)
    assert len(trained) == SETTINGS.folds
    assert {row for row, _ in scored} >= {row.astype(np.float64).tobytes() for row in pool}
    assert set.union(*trained) == {row.astype(np.float64).tobytes() for row in pool}  # every item was a negative
    assert not any(row in trained[fold] for row, fold in scored if fold < SETTINGS.folds)


def test_a_pool_like_the_private_data_is_not_called_irrelevant():
    rng = np.random.default_rng(1)
    pool, private = unit(rng.normal(size=(200, 300))), unit(rng.normal(size=(100, 300)))
    settings = RelevanceSettings(regularisation=1e6)
    assert 0.3 < np.median(np.exp(log_relevance(pool, private, settings, 0))) < 0.7
    # what scoring the training items themselves would have said
    rows, labels = np.concatenate([private, pool]), np.repeat([1, 0], [100, 200])
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(rows, labels)
    assert np.median(fitted.predict_proba(pool)[:, 1]) < 0.05


def test_items_of_the_domain_come_first():
    pool, private, close = world(np.random.default_rng(2), num_items=6000, num_private=600, distance=3.0)
    log_g = log_relevance(pool, private, SETTINGS, 0)
    assert (log_g <= 0).all()
    assert np.mean(log_g[close][:, None] > log_g[~close][None]) > 0.97
    assert np.median(np.exp(log_g[close])) > 0.75
    assert np.median(np.exp(log_g[~close])) < 0.1


@pytest.mark.parametrize("regularisation", [1.0, 1e4])
@pytest.mark.parametrize("negatives_per_example", [1.0, 8.0])
def test_g_is_calibrated(regularisation, negatives_per_example):
    # The odds are the density ratio private : pool, whose mean over the pool is 1, however it was fitted.
    pool, private, _ = world(np.random.default_rng(9), num_items=6000, num_private=500, distance=1.5, share=0.0)
    settings = RelevanceSettings(regularisation=regularisation, negatives_per_example=negatives_per_example)
    log_g = log_relevance(pool, private, settings, 0)
    odds = np.exp(log_g - np.log1p(-np.exp(log_g)))
    assert 0.8 < odds.mean() < 1.25


def test_separable_and_saturated_items_keep_an_order():
    rng = np.random.default_rng(3)
    pool = np.concatenate(
        [rng.normal(size=(500, 8)) * 0.01 + np.eye(8)[0], rng.normal(size=(500, 8)) * 0.01 - np.eye(8)[0]]
    )
    private = unit(rng.normal(size=(200, 8)) * 0.01 + np.eye(8)[0])
    log_g = log_relevance(unit(pool), private, RelevanceSettings(regularisation=1e8, negatives_per_example=8), 0)
    assert np.isfinite(log_g).all()
    assert (log_g < 0).all()
    assert len(np.unique(log_g)) > 990
    assert log_g[:500].min() > log_g[500:].max()


def test_the_order_of_pool_and_private_rows_does_not_matter_and_runs_repeat():
    rng = np.random.default_rng(4)
    pool, private, _ = world(rng)
    log_g = log_relevance(pool, private, SETTINGS, 7)
    assert log_relevance(pool, private, SETTINGS, 7).tolist() == log_g.tolist()
    pool_order, private_order = rng.permutation(len(pool)), rng.permutation(len(private))
    permuted = log_relevance(pool[pool_order], private[private_order], SETTINGS, 7)
    np.testing.assert_allclose(permuted, log_g[pool_order], rtol=1e-10)
    assert not np.allclose(log_relevance(pool, private, SETTINGS, 8), log_g, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_memory_map_gives_the_same(tmp_path, dtype):
    pool, private, _ = world(np.random.default_rng(5), num_items=2500)
    mapped = np.memmap(tmp_path / "pool", dtype=dtype, mode="w+", shape=pool.shape)
    mapped[:] = pool
    expected = log_relevance(pool.astype(dtype), private, SETTINGS, 0)
    assert log_relevance(mapped, private, SETTINGS, 0).tolist() == expected.tolist()


@pytest.mark.parametrize("num_private", [1, 2, 3, 5, 6, 12])
@pytest.mark.parametrize("num_items", [1, 2, 3, 10, 300])
def test_few_rows_on_either_side(num_private, num_items):
    pool, private, _ = world(np.random.default_rng(num_private), num_items=num_items, num_private=num_private)
    log_g = log_relevance(pool, private, SETTINGS, 0)
    assert log_g.shape == (num_items,)
    assert np.isfinite(log_g).all()
    assert (log_g <= 0).all()


def test_a_single_private_row_still_ranks():
    pool, private, close = world(np.random.default_rng(6), num_private=1, distance=12.0)
    log_g = log_relevance(pool, private, SETTINGS, 0)
    assert np.mean(log_g[close][:, None] > log_g[~close][None]) > 0.95


def test_identical_rows():
    same = np.tile(unit(np.ones((1, 4))), (20, 1))
    assert log_relevance(same, same[:5], SETTINGS, 0) == pytest.approx(np.full(20, np.log(0.5)))
    pool, _, _ = world(np.random.default_rng(7), num_items=50, dim=4)
    repeated = np.concatenate([pool, pool])
    log_g = log_relevance(repeated, np.tile(pool[:1], (9, 1)), SETTINGS, 0)
    np.testing.assert_allclose(log_g[:50], log_g[50:], rtol=1e-12)
    assert log_g[0] > np.quantile(log_g, 0.75)


def test_no_private_row_and_bad_rows():
    pool, private, _ = world(np.random.default_rng(8), num_items=20, num_private=5)
    with pytest.raises(InputError, match="no private row"):
        log_relevance(pool, private[:0], SETTINGS, 0)
    broken = private.copy()
    broken[3, 2] = np.nan
    with pytest.raises(InputError, match="Row 3 of the private"):
        log_relevance(pool, broken, SETTINGS, 0)
    broken = pool.copy()
    broken[11] = 0
    with pytest.raises(InputError, match="Row 11 of the pool"):
        log_relevance(broken, private, SETTINGS, 0)
    assert len(log_relevance(pool[:0], private, SETTINGS, 0)) == 0
