"""`collegium push`: the checked model reaches the hub and nothing else does; without a full ledger nothing does."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from collegium.cli import main as cli
from collegium.core.artifacts import MANIFEST, canonical_json, read_artifact, sha256_of
from collegium.core.errors import RunError
from collegium.unify.membership import remove_owner
from collegium.unify.push import push_model
from collegium.unify.unify import unify
from fake_hub import TOKEN, FakeHub, fake_hub
from finetunes import into_shards


@pytest.fixture(scope="module")
def unified(charter, contributions, pool, seed, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("push") / "model"
    return unify(charter, list(contributions.values()), pool, seed, folder).path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with fake_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        yield running


def contents(folder: Path) -> dict[str, bytes]:
    names = [*read_artifact(folder).files, MANIFEST]
    return {name: (folder / name).read_bytes() for name in names}


def refused(monkeypatch, capsys, *arguments: str | Path) -> str:
    """What an ending with exit code 2 says."""
    monkeypatch.setattr(sys, "argv", ["collegium", "push", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2, error
    assert error.startswith("error: ")
    return error


def resealed(folder: Path) -> Path:
    """The manifest made to fit the files again, as a careful forger would."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    manifest["files"] = {f.name: {"sha256": sha256_of(f), "bytes": f.stat().st_size} for f in files}
    (folder / MANIFEST).write_bytes(canonical_json(manifest))
    return folder


def test_a_process_of_its_own_uploads_the_files_of_the_manifest_and_no_others(unified, tmp_path):
    folder = shutil.copytree(unified, tmp_path / "model")
    (folder / "private.jsonl").write_text("a row that nobody meant to publish")
    with fake_hub() as hub:
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-m", "collegium.cli.main", "push", folder, "guild/model", "--private"]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{hub.url}/guild/model/commit/{'a' * 40}\n"
    assert hub.repositories["guild/model"] == {"main": {".gitattributes": b"", **contents(unified)}}
    assert hub.private["guild/model"]


def test_a_branch_is_made_and_the_main_one_stays(unified, hub):
    for _ in range(2):  # the second time both are there
        push_model(unified, "guild/model", revision="v2")
    branches = hub.repositories["guild/model"]
    assert branches["v2"].keys() == {".gitattributes", *contents(unified)}
    assert branches["main"].keys() == {".gitattributes"}


def test_after_an_owner_was_removed_no_weights_of_an_earlier_upload_are_left(unified, hub, tmp_path):
    sharded = shutil.copytree(unified, tmp_path / "sharded")
    push_model(resealed(into_shards(sharded)), "guild/model")
    files = hub.repositories["guild/model"]["main"]
    files["picture.png"] = b"of the repository's owner"
    assert "model-00003-of-00003.safetensors" in files
    push_model(remove_owner(unified, "port", tmp_path / "farm").path, "guild/model")
    assert files == {".gitattributes": b"", "picture.png": files["picture.png"], **contents(tmp_path / "farm")}


def test_private_is_not_ignored_for_a_repository_that_is_public(unified, hub, monkeypatch, capsys):
    push_model(unified, "guild/open")
    assert "public already" in refused(monkeypatch, capsys, unified, "guild/open", "--private")
    assert sum("/commit/" in request for request in hub.requests) == 1


def test_a_repository_that_ignores_a_file_is_no_success(unified, hub):
    hub.drops.add("ledger.json")
    with pytest.raises(RunError, match=r"ledger\.json missing there"):
        push_model(unified, "guild/model")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), "no artifact of Collegium"),
        (lambda folder: (folder / "ledger.json").unlink(), "ledger.json is missing"),
        (lambda folder: (folder / "README.md").write_text("another card"), "README.md"),
        (lambda folder: [(folder / "ledger.json").unlink(), resealed(folder)], "manifest lacks ledger.json"),
        (lambda folder: [(folder / "model.safetensors").unlink(), resealed(folder)], "lacks model.safetensors"),
        (lambda folder: [_change_ledger(folder, lambda all: all.pop("port")), resealed(folder)], "entries of farm"),
        (lambda folder: [_change_ledger(folder, lambda all: all["port"].clear()), resealed(folder)], "entries of farm"),
        (lambda folder: [(folder / "ledger.json").write_text("{"), resealed(folder)], "cannot be read"),
        (lambda folder: _change_kind(folder, "merged-model"), "no unified model with a ledger"),
    ],
    ids=["manifest", "missing", "changed", "no-ledger", "no-weights", "no-owner", "no-entries", "broken", "merged"],
)
def test_a_folder_with_a_fault_reaches_no_hub(edit, words, unified, hub, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(unified, tmp_path / "model")
    edit(folder)
    assert words in refused(monkeypatch, capsys, folder, "guild/model")
    assert hub.requests == []


def test_a_sharded_folder_without_one_of_its_shards_is_refused(unified, hub, tmp_path, monkeypatch, capsys):
    folder = into_shards(shutil.copytree(unified, tmp_path / "model"))
    (folder / "model-00002-of-00003.safetensors").unlink()
    error = refused(monkeypatch, capsys, resealed(folder), "guild/model")
    assert "lacks model-00002-of-00003.safetensors" in error
    assert hub.requests == []


@pytest.mark.parametrize(("token", "words"), [("hf_of_a_stranger", "refused the token"), ("", "without a token")])
def test_a_token_that_is_refused_is_one_clear_error(token, words, unified, hub, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", token)
    error = refused(monkeypatch, capsys, unified, "guild/model")
    assert words in error
    assert "hf auth login" in error
    assert hub.repositories == {}


def test_a_wrong_name_and_offline_mode_are_clear_errors(unified, hub, monkeypatch, capsys):
    assert "name of the repository" in refused(monkeypatch, capsys, unified, "guild/mo del")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refused(monkeypatch, capsys, unified, "guild/model")
    assert hub.requests == []


def test_a_hub_that_is_not_there_is_a_failed_run(unified, hub, monkeypatch):
    with socket.socket() as bound:  # nobody listens here
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(RunError, match="cannot be reached"):
            push_model(unified, "guild/model")


def _change_ledger(folder: Path, change) -> None:
    ledger = json.loads((folder / "ledger.json").read_bytes())
    change(ledger)
    (folder / "ledger.json").write_bytes(canonical_json(ledger))


def _change_kind(folder: Path, kind: str) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes()) | {"kind": kind}
    (folder / MANIFEST).write_bytes(canonical_json(manifest))
