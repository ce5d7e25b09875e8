"""The first stage alone: kept in the store, found by `contribute`, never half-written, never for another question."""

import stat

import numpy as np
import pytest

from collegium.core.artifacts import read_artifact
from collegium.core.errors import InputError, ReleaseRefused
from collegium.core.recipe import OwnerRecipe
from collegium.owner import choose_proxies as module
from collegium.owner.choose_proxies import choose_proxies, choose_shard
from collegium.owner.contribute import contribute
from collegium.owner.private_data import load_private
from collegium.privacy.release_store import ReleaseStore
from collegium.selection import shard_processes
from tiny import NO_OVERLAP_CHECK, write_rows


@pytest.fixture
def recipe(tmp_path) -> OwnerRecipe:
    data = write_rows(tmp_path / "private" / "farm.jsonl", "farm", 20)
    return OwnerRecipe.model_validate({"name": "farm", "data": str(data), "privacy": NO_OVERLAP_CHECK})


@pytest.fixture
def store(tmp_path) -> ReleaseStore:
    return ReleaseStore(tmp_path / "store")


def select(charter, recipe, pool, seed, store, **options):
    return choose_proxies(charter, recipe, pool, seed, load_private(charter, recipe), store, **options)


def select_shard(charter, recipe, pool, seed, store, shard):
    return choose_shard(charter, recipe, pool, seed, load_private(charter, recipe), store, shard)


def names(store: ReleaseStore) -> set[str]:
    return {path.name for path in store.folder.iterdir()} if store.folder.exists() else set()


def test_a_contribution_is_the_same_with_a_selection_before_it_and_without(
    tmp_path, charter, recipe, pool, seed, store, monkeypatch
):
    alone = contribute(charter, recipe, pool, seed, tmp_path / "alone", ReleaseStore(tmp_path / "other"))
    chosen = select(charter, recipe, pool, seed, store)
    assert len(chosen.rows) == 20
    monkeypatch.setattr(module, "select_proxies", None)  # what is kept is not computed again
    monkeypatch.setattr(module, "embed_texts", None)
    assert contribute(charter, recipe, pool, seed, tmp_path / "after", store).sha256 == alone.sha256
    assert select(charter, recipe, pool, seed, store) == chosen


def test_shards_one_by_one_make_the_same_contribution(tmp_path, make_charter, recipe, pool, seed, store, monkeypatch):
    charter = make_charter(selection={"size": 20, "shards": 3})
    alone = contribute(charter, recipe, pool, seed, tmp_path / "alone", ReleaseStore(tmp_path / "other"))
    paths = [select_shard(charter, recipe, pool, seed, store, shard) for shard in (2, 0, 1)]
    assert [path.name for path in paths] == ["3-of-3", "1-of-3", "2-of-3"]
    monkeypatch.setattr(shard_processes, "answer", None)
    assert contribute(charter, recipe, pool, seed, tmp_path / "merged", store).sha256 == alone.sha256
    assert not any(name.endswith("-shards") for name in names(store))  # merged, so no longer needed
    whole = select_shard(charter, recipe, pool, seed, store, 1)
    assert read_artifact(whole).kind == "selection"


def test_one_shard_is_another_question_than_several(make_charter, recipe, pool, seed, store):
    select(make_charter(), recipe, pool, seed, store)
    select(make_charter(selection={"size": 20, "shards": 4}), recipe, pool, seed, store)
    assert len(names(store)) == 2


@pytest.mark.parametrize("shards", [1, 3])
def test_promise_5_killed_nothing_is_half_written_and_it_goes_on(
    make_charter, recipe, pool, seed, store, monkeypatch, shards
):
    charter = make_charter(selection={"size": 20, "shards": shards})

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shard_processes, "merge_selections", stop)
        patch.setattr(module, "save_file", stop)
        select(charter, recipe, pool, seed, store)
    assert [name for name in names(store) if not name.endswith("-shards")] == []
    if shards > 1:
        monkeypatch.setattr(shard_processes, "answer", None)  # all shards were finished
    select(charter, recipe, pool, seed, store)
    assert len(names(store)) == 1


def test_a_damaged_selection_is_made_again(charter, recipe, pool, seed, store):
    chosen = select(charter, recipe, pool, seed, store)
    (path,) = store.folder.iterdir()
    for file, content in (("picks.safetensors", b""), ("picks.safetensors", b"changed"), ("manifest.json", b"{}")):
        (path / file).write_bytes(content)
        assert select(charter, recipe, pool, seed, store) == chosen
        assert read_artifact(path).kind == "selection"


def test_other_texts_or_settings_are_another_selection(tmp_path, make_charter, charter, recipe, pool, seed, store):
    select(charter, recipe, pool, seed, store)
    others = write_rows(tmp_path / "others.jsonl", "farm", 20, name="others")
    select(charter, recipe.model_copy(update={"data": str(others)}), pool, seed, store)
    select(make_charter(selection={"size": 21}), recipe, pool, seed, store)
    select(make_charter(random_seed=1), recipe, pool, seed, store)
    select(make_charter(training={"epochs": 2}), recipe, pool, seed, store)  # the selection does not depend on it
    assert len(names(store)) == 4


def test_allowed_overlap_once_is_not_allowed_overlap_for_ever(tmp_path, charter, recipe, pool, seed, store):
    strict = recipe.model_copy(update={"privacy": recipe.privacy.model_copy(update={"overlap_similarity": 0.01})})
    with pytest.raises(ReleaseRefused):
        select(charter, strict, pool, seed, store)
    assert names(store) == set()
    select(charter, strict, pool, seed, store, allow_overlap=True)
    with pytest.raises(ReleaseRefused):
        contribute(charter, strict, pool, seed, tmp_path / "out", store)
    assert not (tmp_path / "out").exists()


def test_promise_1_all_that_is_written_lies_in_the_owners_closed_store(
    tmp_path, make_charter, recipe, pool, seed, store, monkeypatch
):
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    before = set(tmp_path.rglob("*"))
    charter = make_charter(selection={"size": 20, "shards": 2})
    select_shard(charter, recipe, pool, seed, store, 0)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    select(charter, recipe, pool, seed, store)
    assert all(path.is_relative_to(store.folder) for path in set(tmp_path.rglob("*")) - before)
    content = b"".join(path.read_bytes() for path in store.folder.rglob("*") if path.is_file())
    assert not any(text.encode() in content for text in load_private(charter, recipe).texts)


@pytest.mark.parametrize(("shards", "shard"), [(1, 0), (3, 3), (3, -1)])
def test_a_shard_that_the_charter_does_not_have_is_refused(make_charter, recipe, pool, seed, store, shards, shard):
    charter = make_charter(selection={"size": 20, "shards": shards})
    with pytest.raises(InputError, match="no such shard"):
        select_shard(charter, recipe, pool, seed, store, shard)
    assert names(store) == set()


@pytest.mark.parametrize("method", ["k-dpp", "facility-location", "k-centre"])
def test_every_method_makes_a_contribution(tmp_path, make_charter, recipe, pool, seed, store, method):
    charter = make_charter(selection={"size": 12, "method": method})
    artifact = contribute(charter, recipe, pool, seed, tmp_path / "out", store)
    again = contribute(charter, recipe, pool, seed, tmp_path / "again", ReleaseStore(tmp_path / "other"))
    assert artifact.sha256 == again.sha256
    assert np.isfinite(select(charter, recipe, pool, seed, store).log_det)
