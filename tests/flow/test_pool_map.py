"""The map of a pool: the same each time, with few items, few owners and pictures, and figures by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collegium.core.artifacts import canonical_json, writing
from collegium.core.recipe import PoolSettings
from collegium.flow import pool_map
from collegium.flow.pool_map import coverage, map_pool, project
from collegium.models.seed_model import SeedModel
from collegium.selection.pool import Pool, build_pool
from tiny import POOL_WORDS, make_texts, write_pictures


@pytest.fixture
def make_pool(seed: SeedModel, tmp_path: Path) -> Callable[[int], Pool]:
    def make(items: int) -> Pool:
        texts = make_texts(POOL_WORDS, items, "map")
        (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return build_pool(tmp_path / "pool", PoolSettings(data=str(tmp_path / "texts.jsonl")), seed, 0)

    return make


def _contributions(folder: Path, pool: Pool, **rows: list[int]) -> dict[str, Path]:
    for name, own in rows.items():
        with writing(folder / name, "contribution", {}, {"rows": own}) as inside:
            (inside / "proxies.json").write_bytes(canonical_json([pool.hashes[row] for row in own]))
    return {name: folder / name for name in rows}


def _read(path: Path) -> dict:
    return json.loads((path / "map.json").read_text())


@pytest.mark.parametrize("items", [3, 30, 120])
def test_every_point_is_on_the_map_and_the_map_is_the_same_each_time(make_pool, items: int, tmp_path: Path) -> None:
    pool = make_pool(items)
    contributions = _contributions(tmp_path, pool, farm=[0, items - 1], port=[1, items - 1])
    first = map_pool(tmp_path / "map", pool, contributions)
    found = _read(first.path)
    assert len(found["pool"]) == items
    assert found["owners"] == {"farm": [found["pool"][0]], "port": [found["pool"][1]]}
    assert found["shared"] == [found["pool"][items - 1]]
    places = np.array(found["pool"])
    assert np.abs(places).max() == pytest.approx(1)
    assert len({tuple(place) for place in found["pool"]}) > items // 2
    assert map_pool(tmp_path / "again", pool, dict(reversed(contributions.items()))).sha256 == first.sha256


def test_the_smallest_pool_has_a_map(make_pool, tmp_path: Path) -> None:
    pool = make_pool(2)
    found = _read(map_pool(tmp_path / "map", pool, _contributions(tmp_path, pool, farm=[0], port=[1])).path)
    assert found["owners"]["farm"] != found["owners"]["port"]


def test_a_finished_map_is_kept_and_other_proxies_give_another(make_pool, tmp_path: Path, monkeypatch) -> None:
    pool = make_pool(40)
    contributions = _contributions(tmp_path, pool, farm=[0, 1], port=[2, 3])
    first = map_pool(tmp_path / "map", pool, contributions)
    with monkeypatch.context() as patch:
        patch.setattr(pool_map, "project", None)
        assert map_pool(tmp_path / "map", pool, contributions).sha256 == first.sha256
    other = _contributions(tmp_path / "other", pool, farm=[0, 1], port=[4, 5])
    assert map_pool(tmp_path / "map", pool, other).sha256 != first.sha256


def test_no_more_than_agreed_is_shown_but_all_is_counted(make_pool, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pool_map, "SAMPLE", 10)
    monkeypatch.setattr(pool_map, "SHOWN", 5)
    pool = make_pool(60)
    contributions = _contributions(tmp_path, pool, farm=list(range(20, 30)), port=list(range(29, 40)))
    found = _read(map_pool(tmp_path / "map", pool, contributions).path)
    assert len(found["pool"]) == 10
    assert [len(own) for own in found["owners"].values()] == [5, 4]  # the lowest hash of port's is shared
    assert len(found["shared"]) == 1
    assert found["coverage"]["compared"] == 10
    assert [one["proxies"] for one in found["coverage"]["owners"].values()] == [10, 11]


def test_a_pool_of_pictures(vision_seed: SeedModel, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "pictures", ["stone", "cloud", "lamp"], 12)
    pool = build_pool(tmp_path / "pool", PoolSettings(data=str(folder)), vision_seed, 0)
    contributions = _contributions(tmp_path, pool, farm=[0, 1, 2], port=[2, 3])
    found = _read(map_pool(tmp_path / "map", pool, contributions).path)
    assert len(found["pool"]) == len(pool) == 36
    assert found["coverage"]["owners"]["port"]["shared"] == 1


def test_coverage_by_hand() -> None:
    half = 0.5**0.5
    pool = _Embeddings([[1, 0], [0, 1], [half, half], [-1, 0]])
    found = coverage(pool, {"a": [0, 2], "b": [2], "c": [0, 1, 3]})
    assert found["compared"] == 4
    assert found["owners"]["a"] == {
        "proxies": 2,
        "shared": 2,
        "spread": pytest.approx(half, abs=6e-4),
        "nearest": pytest.approx((1 + half + 1 - half) / 4, abs=6e-4),
    }
    assert found["owners"]["b"]["spread"] is None
    assert found["owners"]["c"] == {
        "proxies": 3,
        "shared": 1,
        "spread": pytest.approx(-1 / 3, abs=6e-4),
        "nearest": pytest.approx((3 + half) / 4, abs=6e-4),
    }


def test_groups_stay_together() -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(3, 64))
    rows = np.repeat(centres, 30, axis=0) + 0.05 * generator.normal(size=(90, 64))
    places = project(rows.astype(np.float32)).reshape(3, 30, 2)
    within = np.abs(places - places.mean(axis=1, keepdims=True)).max()
    between = min(np.linalg.norm(places[i].mean(0) - places[j].mean(0)) for i in range(3) for j in range(i))
    assert within < between / 2


def test_items_that_are_all_the_same_lie_in_the_middle() -> None:
    assert not project(np.ones((5, 8), np.float32)).any()


class _Embeddings(Pool):
    """A pool of embeddings alone."""

    def __init__(self, rows: list[list[float]]):
        object.__setattr__(self, "embeddings", np.array(rows, np.float32))
