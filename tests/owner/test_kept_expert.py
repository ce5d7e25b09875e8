"""A trained expert is used again exactly where its training would be the same."""

import pytest

from collegium.core.recipe import OwnerRecipe
from collegium.owner import kept_expert as module
from collegium.owner.contribute import contribute
from collegium.owner.validate import read_contribution
from collegium.privacy.release_store import ReleaseStore
from tiny import NO_OVERLAP_CHECK, write_rows


@pytest.fixture
def trainings(monkeypatch):
    """How often an expert was trained."""
    done = []
    train = module.train_expert
    monkeypatch.setattr(module, "train_expert", lambda *args: done.append(args) or train(*args))
    return done


@pytest.fixture
def make_contribution(tmp_path, pool, seed, owner_recipe):
    """A contribution under a charter; every one with a memory of releases of its own, and one work folder."""

    def make(charter, name, data=None):
        store = ReleaseStore(tmp_path / f"store {name}", work=tmp_path / "work")
        path = tmp_path / name
        contribute(charter, owner_recipe(data), pool, seed, path, store)
        return read_contribution(path, charter, pool, seed)

    return make


@pytest.fixture
def owner_recipe(tmp_path):
    first = write_rows(tmp_path / "farm.jsonl", "farm", 30)

    def make(data=None):
        return OwnerRecipe(name="farm", data=str(data or first), privacy=NO_OVERLAP_CHECK)

    return make


def same(one, other):
    assert one.keys() == other.keys()
    return all(one[name].equal(other[name]) for name in one)


def test_a_charter_that_only_routes_differently_trains_nothing_again(make_charter, make_contribution, trainings):
    first = make_contribution(make_charter(router={"init": "raw"}), "first")
    second = make_contribution(make_charter(router={"init": "lda", "vectors": "private"}), "second")
    assert len(trainings) == 1
    assert same(first.expert, second.expert)
    assert first.artifact.sha256 != second.artifact.sha256


@pytest.mark.parametrize(
    "terms",
    [
        {"training": {"steps": 4, "batch_size": 4}},
        {"training": {"steps": 5, "batch_size": 4, "alignment": "proxy"}},
        {"random_seed": 1},
        {"selection": {"size": 7}},
        {"router": {"decide_layer": 0}},
    ],
    ids=["steps", "alignment", "random seed", "proxies", "layers"],
)
def test_whatever_changes_the_training_trains_again(make_charter, make_contribution, trainings, terms):
    base = {"training": {"steps": 5, "batch_size": 4}}
    make_contribution(make_charter(**base), "first")
    make_contribution(make_charter(**{**base, **terms}), "second")
    assert len(trainings) == 2


def test_other_private_texts_train_again(make_charter, make_contribution, trainings, tmp_path):
    make_contribution(make_charter(), "first")
    make_contribution(make_charter(), "second", write_rows(tmp_path / "others.jsonl", "farm", 30, name="others"))
    assert len(trainings) == 2


def test_experts_of_private_texts_alone_do_not_depend_on_the_proxies(make_charter, make_contribution, trainings):
    training = {"alignment": "private", "steps": 4}
    make_contribution(make_charter(training=training), "first")
    make_contribution(make_charter(training=training, selection={"size": 9}), "second")
    assert len(trainings) == 1


def test_a_damaged_expert_is_trained_again(make_charter, make_contribution, trainings, tmp_path):
    first = make_contribution(make_charter(router={"init": "raw"}), "first")
    [kept] = (tmp_path / "work").glob("expert-*")
    (kept / module.TENSORS).write_bytes(b"\0" * 8)
    second = make_contribution(make_charter(router={"init": "lda"}), "second")
    assert len(trainings) == 2
    assert same(first.expert, second.expert)
