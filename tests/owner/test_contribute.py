"""The owner's one command: what it writes and where, what it refuses, and what --dry-run promises."""

import json
from pathlib import Path

import numpy as np
import pytest

from collegium.core.errors import DataError, InputError, ReleaseRefused
from collegium.core.recipe import OwnerRecipe
from collegium.owner import contribute as contribute_module
from collegium.owner import kept_expert as kept_expert_module
from collegium.owner.contribute import contribute, plan_contribution
from collegium.owner.private_data import load_private
from collegium.owner.validate import read_contribution
from collegium.privacy.release_store import ReleaseStore
from tiny import NO_OVERLAP_CHECK, write_rows


def owner(data: Path, **changes: object) -> OwnerRecipe:
    values = {"name": "farm", "data": str(data), "privacy": NO_OVERLAP_CHECK}
    return OwnerRecipe.model_validate(values | changes)


@pytest.fixture
def data(tmp_path) -> Path:
    return write_rows(tmp_path / "private" / "farm.jsonl", "farm", 20)


@pytest.fixture
def world(tmp_path, data, monkeypatch):
    """An owner's machine: home, temporary files and working folder all lie in one tree that can be watched."""
    for name in ("home", "temporary", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in ("HF_HOME", "XDG_CACHE_HOME", "TORCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def test_promise_1_every_file_written_lies_in_the_destination_or_in_the_store(world, data, charter, pool, seed):
    inputs = {path: snapshot(path) for path in (charter.artifact.path, pool.artifact.path)}
    before = snapshot(world)
    contribute(charter, owner(data), pool, seed, world / "out" / "farm", ReleaseStore(world / "store"))
    after = snapshot(world)
    assert {name: after[name] for name in before} == before
    new = set(after) - set(before)
    assert {name.split("/", maxsplit=1)[0] for name in new} == {"out", "store"}
    assert {name for name in new if name.startswith("out/") and after[name] is not None} == {
        f"out/farm/{name}"
        for name in (
            "expert.safetensors",
            "routing.safetensors",
            "proxies.json",
            "ledger.json",
            "card.md",
            "manifest.json",
        )
    }
    stored = {name.removeprefix("store/") for name in new if name.startswith("store/")}
    kept = {name for name in stored if name.startswith(("contribution-", "selection-", "expert-"))}
    assert stored - kept == {"lock", "work.lock", "releases.json"}
    assert len({name.split("/")[0] for name in kept}) == 3
    assert all(snapshot(path) == content for path, content in inputs.items())


def test_promise_1_no_connection_is_opened(world, data, charter, pool, seed, monkeypatch):
    import socket

    def refuse(*_):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    contribute(charter, owner(data), pool, seed, world / "out", ReleaseStore(world / "store"))


def test_a_dry_run_writes_nothing(world, data, charter, seed):
    before = snapshot(world)
    plan_contribution(charter, owner(data), seed)
    assert snapshot(world) == before


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"selection": {"size": 7}},
        {"selection": {"size": 120}},
        {"training": {"parameters": "lora", "rank": 3}},
        {"router": {"decide": "every-layer", "vectors": "private"}},
    ],
)
def test_a_dry_run_names_every_file_and_no_size_is_larger_than_it_says(
    tmp_path, data, make_charter, pool, seed, changes
):
    charter = make_charter(**changes)
    plan = plan_contribution(charter, owner(data), seed)
    artifact = contribute(charter, owner(data), pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "store"))
    sizes = {file.name: file.stat().st_size for file in artifact.path.iterdir()}
    assert plan.files.keys() == sizes.keys()
    assert all(sizes[name] <= plan.files[name] for name in sizes)
    for name in ("expert.safetensors", "routing.safetensors"):
        assert sizes[name] == plan.files[name]
    ledger = json.loads((artifact.path / "ledger.json").read_bytes())
    assert [entry.what for entry in plan.ledger] == [entry["what"] for entry in ledger]


def test_the_same_inputs_are_not_worked_on_again(tmp_path, data, charter, pool, seed, monkeypatch):
    store = ReleaseStore(tmp_path / "store")
    first = contribute(charter, owner(data), pool, seed, tmp_path / "out", store)
    with monkeypatch.context() as patch:
        patch.setattr(kept_expert_module, "train_expert", None)
        assert contribute(charter, owner(data), pool, seed, tmp_path / "out", store) == first
    (tmp_path / "out" / "card.md").write_text("changed")
    assert contribute(charter, owner(data), pool, seed, tmp_path / "out", store).sha256 == first.sha256
    assert not list(store.folder.glob("checkpoints-*"))


def test_a_second_contribution_over_the_same_data_is_refused_before_it_is_trained_or_written(
    tmp_path, data, charter, make_charter, pool, seed, monkeypatch
):
    store = ReleaseStore(tmp_path / "store")
    contribute(charter, owner(data), pool, seed, tmp_path / "out", store)
    other = make_charter(selection={"size": 30})
    monkeypatch.setattr(kept_expert_module, "train_expert", None)
    with pytest.raises(ReleaseRefused, match="their number and their mean"):
        contribute(other, owner(data), pool, seed, tmp_path / "second", store)
    assert not (tmp_path / "second").exists()


def test_a_second_contribution_of_other_data_is_made(tmp_path, data, charter, make_charter, pool, seed):
    store = ReleaseStore(tmp_path / "store")
    contribute(charter, owner(data), pool, seed, tmp_path / "out", store)
    others = write_rows(tmp_path / "others.jsonl", "farm", 20, name="others")
    contribute(make_charter(selection={"size": 30}), owner(others), pool, seed, tmp_path / "second", store)


def test_promise_5_stopped_after_the_release_was_remembered_it_goes_on_with_the_same_release(
    tmp_path, data, charter, pool, seed, monkeypatch
):
    undisturbed = contribute(charter, owner(data), pool, seed, tmp_path / "a", ReleaseStore(tmp_path / "other"))
    store = ReleaseStore(tmp_path / "store")

    def stop(*_):
        raise KeyboardInterrupt

    for module, stage in ((kept_expert_module, "train_expert"), (contribute_module, "write_contribution")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, stage, stop)
            contribute(charter, owner(data), pool, seed, tmp_path / "out", store)
        assert not (tmp_path / "out").exists()
        assert len(json.loads((store.folder / "releases.json").read_bytes())) == 1
    assert contribute(charter, owner(data), pool, seed, tmp_path / "out", store).sha256 == undisturbed.sha256


def test_an_owner_whom_the_charter_does_not_name_is_refused(tmp_path, data, charter, pool, seed):
    with pytest.raises(InputError, match="does not name this owner"):
        contribute(charter, owner(data, name="bank"), pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "s"))
    assert not (tmp_path / "s").exists()


def test_classes_that_the_charter_does_not_name_are_refused(tmp_path, charter):
    data = write_rows(tmp_path / "port.jsonl", "port", 20)
    with pytest.raises(DataError, match="classes that the charter does not name") as raised:
        load_private(charter, owner(data))
    assert "sea, ship" in str(raised.value)


def test_data_without_labels_are_refused(tmp_path, data, charter):
    with pytest.raises(DataError, match="no labels"):
        load_private(charter, owner(data, columns={"label": None}))


@pytest.mark.parametrize("alignment", ["private", "proxy", "both"])
def test_what_an_expert_is_trained_on(tmp_path, data, make_charter, pool, seed, monkeypatch, alignment):
    charter = make_charter(training={"alignment": alignment, "epochs": 1, "warmup_steps": 0})
    seen = {}
    train = kept_expert_module.train_expert

    def spy(seed, exercises, *rest):
        seen.update(texts=exercises.items, targets=exercises.targets)
        return train(seed, exercises, *rest)

    monkeypatch.setattr(kept_expert_module, "train_expert", spy)
    contribute(charter, owner(data), pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "store"))
    read = read_contribution(tmp_path / "out", charter, pool, seed)
    private = load_private(charter, owner(data))
    proxies = [text for text in pool.texts(read.proxy_rows) if text in seen["texts"]]
    assert seen["texts"] == {"private": private.texts, "proxy": proxies, "both": private.texts + proxies}[alignment]
    assert (alignment == "private") == (not proxies)
    probabilities, allowed = seen["targets"].probabilities, seen["targets"].allowed
    assert len(probabilities) == len(seen["texts"])
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(len(probabilities)), abs=1e-5)
    if alignment != "proxy":
        classes = charter.classes(seed)
        answers = [classes.names[row] for row in probabilities[: len(private)].argmax(axis=1)]
        assert answers == [("farm", label) for label in private.labels]
        assert allowed[: len(private)].all()  # the union of all owners' class names competes
    expert = next(entry for entry in read.ledger if entry["file"] == "expert.safetensors")
    assert ("private examples" in expert["from_data"]) is True
    assert ("and public proxies" in expert["from_data"]) == (alignment == "both")


def test_own_labels_compete_alone_where_the_charter_says_so(tmp_path, data, make_charter, pool, seed, monkeypatch):
    charter = make_charter(training={"labels": "own", "alignment": "private", "epochs": 1})
    seen = []
    monkeypatch.setattr(kept_expert_module, "train_expert", lambda *args: seen.append(args[1].targets) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        contribute(charter, owner(data), pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "store"))
    assert (seen[0].allowed == [1, 1, 0, 0]).all()


def test_an_owner_with_hidden_labels_trains_on_them_and_does_not_publish_them(
    tmp_path, data, make_charter, make_recipe, pool, seed
):
    owners = {name: one.model_dump() | {"publish_labels": False} for name, one in make_recipe().owners.items()}
    charter = make_charter(owners=owners)
    contribute(charter, owner(data), pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "store"))
    read = read_contribution(tmp_path / "out", charter, pool, seed)
    assert "class names" not in [entry["what"] for entry in read.ledger]
    content = b"".join(file.read_bytes() for file in (tmp_path / "out").iterdir())
    assert b"animal" not in content
    assert b"plant" not in content


def test_case_18_a_pool_smaller_than_asked_for_is_said_and_the_true_number_is_in_the_ledger(
    tmp_path, data, make_charter, pool, seed, capsys
):
    charter = make_charter(selection={"size": 500, "method": "similarity"})
    contribute(charter, owner(data), pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "store"))
    assert f"{len(pool)} of 500" in capsys.readouterr().err
    read = read_contribution(tmp_path / "out", charter, pool, seed)
    assert len(read.proxy_rows) == len(pool)
    routing = next(entry for entry in read.ledger if entry["what"] == "routing vectors")
    used = sum(int(value[:8], 16) % 10 != 0 for value in pool.hashes)
    assert f"m = {used})" in routing["sensitivity"]
