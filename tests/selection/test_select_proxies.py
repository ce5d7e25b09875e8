"""From embeddings to proxies, by every method: distinct items always (CASES, row 18)."""

from typing import get_args

import numpy as np
import pytest

from collegium.core.errors import InputError
from collegium.core.recipe import SelectionSettings
from collegium.selection import select
from collegium.selection.baselines import select_similarity
from collegium.selection.dpp import select_dpp
from collegium.selection.facility_location import select_facility_location
from collegium.selection.k_centre import select_k_centre
from collegium.selection.k_dpp import select_k_dpp
from collegium.selection.relevance import log_relevance
from collegium.selection.select import METHODS, select_proxies


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def world(num_items=400, dim=12, seed=0):
    rng = np.random.default_rng(seed)
    pool = unit(rng.normal(size=(num_items, dim)) + 3 * (rng.random((num_items, 1)) < 0.2) * np.eye(dim)[0])
    private = unit(rng.normal(size=(60, dim)) + 3 * np.eye(dim)[0])
    return pool, [f"{number:08x}" for number in rng.permutation(num_items)], private, rng


def test_the_registry_holds_every_method_of_the_settings():
    assert set(METHODS) == set(get_args(SelectionSettings.model_fields["method"].annotation))


@pytest.mark.parametrize(
    ("method", "function"),
    [
        ("dpp", select_dpp),
        ("k-dpp", lambda *rest: select_k_dpp(*rest[:4], 5, rest[4])),
        ("facility-location", select_facility_location),
        ("k-centre", select_k_centre),
        ("similarity", lambda pool, relevance, size, ridge, hashes: select_similarity(relevance, size, hashes)),
    ],
)
def test_every_name_leads_to_its_strategy(method, function):
    pool, hashes, private, _ = world()
    settings = SelectionSettings(method=method, size=40)
    relevance = log_relevance(pool, private, settings.relevance, 5)
    expected = function(pool, relevance, 40, settings.ridge, hashes)
    assert select_proxies(pool, hashes, private, settings, 5).indices.tolist() == expected.indices.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_neither_order_matters(method):
    pool, hashes, private, rng = world()
    settings = SelectionSettings(method=method, size=50)
    selection = select_proxies(pool, hashes, private, settings, 3)
    assert len(set(selection.indices.tolist())) == 50
    assert selection.shortfall is None
    order = rng.permutation(len(pool))
    permuted = select_proxies(pool[order], [hashes[i] for i in order], private[::-1], settings, 3)
    assert [order[i] for i in permuted.indices] == selection.indices.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_case_18_small_pool_with_duplicates(method):
    pool, hashes, private, _ = world(num_items=30)
    pool, hashes = np.concatenate([pool, pool, pool[:5]]), hashes + hashes + hashes[:5]
    selection = select_proxies(pool, hashes, private, SelectionSettings(method=method, size=50), 0)
    assert sorted(selection.indices.tolist()) == list(range(30))
    assert "30 of 50" in selection.shortfall


@pytest.mark.parametrize("method", METHODS)
def test_case_18_equal_relevance(method, monkeypatch):
    pool, hashes, private, _ = world(num_items=80)
    monkeypatch.setattr(select, "log_relevance", lambda pool, *_: np.full(len(pool), -0.5))
    repeats = np.concatenate([pool, pool])
    settings = SelectionSettings(method=method, size=60)
    selection = select_proxies(repeats, hashes + hashes, private, settings, 0)
    assert len({hashes[i % 80] for i in selection.indices}) == 60
    if method == "similarity":  # ties: not the order of the pool but that of the hashes
        assert [hashes[i] for i in selection.indices] == sorted(hashes)[:60]


def test_the_diverse_selection_has_the_largest_determinant():
    pool, hashes, private, rng = world(num_items=300)
    pool = unit(np.repeat(pool[:20], 15, axis=0) + 0.01 * rng.normal(size=(300, 12)))
    relevance = log_relevance(pool, private, SelectionSettings().relevance, 0)
    log_dets = {}
    for method in METHODS:
        selection = select_proxies(pool, hashes, private, SelectionSettings(method=method, size=20), 0)
        rows = pool[selection.indices].astype(np.float64)
        log_dets[method] = np.linalg.slogdet(rows @ rows.T + 1e-3 * np.eye(20))[1]
        log_dets[method] += 2 * relevance[selection.indices].sum()
        if method == "dpp":
            assert selection.log_det == pytest.approx(log_dets[method], rel=1e-9)
    assert log_dets["dpp"] > max(log_dets["similarity"], log_dets["random"]) + 1


def test_wrong_number_of_hashes():
    pool, hashes, private, _ = world()
    with pytest.raises(InputError, match="content hashes"):
        select_proxies(pool, hashes[:-1], private, SelectionSettings(), 0)


def test_an_empty_pool_is_a_shortfall():
    _, _, private, _ = world()
    for method in METHODS:
        selection = select_proxies(
            np.empty((0, 12), np.float32), [], private, SelectionSettings(method=method, size=5), 0
        )
        assert "0 of 5" in selection.shortfall
