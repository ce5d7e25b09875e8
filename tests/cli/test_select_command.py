"""`collegium select`: what the owner sees, one shard at a time, and one clear error."""

import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from collegium.cli import main as cli
from collegium.core.progress import set_quiet
from tiny import NO_OVERLAP_CHECK, write_rows


@pytest.fixture(autouse=True)
def _loud_again():
    yield
    set_quiet(False)


@pytest.fixture
def arguments(tmp_path, make_charter, pool, seed_folder):
    """Of an owner whose charter has this many shards."""
    write_rows(tmp_path / "farm.jsonl", "farm", 20)
    recipe = {"name": "farm", "data": str(tmp_path / "farm.jsonl"), "privacy": NO_OVERLAP_CHECK}
    (tmp_path / "farm.yaml").write_text(yaml.safe_dump(recipe))

    def make(shards: int, size: int = 20) -> list[str]:
        charter = make_charter(selection={"size": size, "shards": shards})
        folders = ["--pool", str(pool.artifact.path), "--seed-model", str(seed_folder)]
        return [str(charter.artifact.path), str(tmp_path / "farm.yaml"), *folders]

    return make


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def fails(monkeypatch, capsys, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["collegium", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_the_owner_sees_size_log_det_and_examples(tmp_path, arguments, pool):
    output = run("select", *arguments(shards=1))
    assert f"20 proxies of {len(pool)} pool items, by dpp" in output
    assert "log det" in output
    assert "held out" in output
    shown = [line.strip() for line in output.splitlines() if line.startswith("  ")]
    assert len(shown) == 5
    assert set(shown) <= set(pool.texts(range(len(pool))))
    assert {path.name for path in tmp_path.iterdir()} == {"farm.jsonl", "farm.yaml", ".collegium"}


def test_a_shortfall_is_said(arguments, pool):
    assert f"{len(pool)} of 500 items found" in run("select", *arguments(shards=1, size=500))


def test_shards_then_the_whole_then_the_contribution(tmp_path, arguments, monkeypatch):
    asked = arguments(shards=2)
    for shard in ("2/2", "1/2"):
        assert f"shard {shard}" in run("select", *asked, "--shard", shard)
    whole = run("select", *asked, "--processes", "1")
    monkeypatch.setattr("collegium.owner.choose_proxies.select_proxies", None)
    assert run("select", *asked) == whole
    output = run("contribute", *asked, "--out", str(tmp_path / "out"))
    assert "send this folder" in output
    assert {path.name for path in tmp_path.iterdir()} == {"farm.jsonl", "farm.yaml", ".collegium", "out"}


@pytest.mark.parametrize(
    ("shards", "shard", "words"),
    [
        (2, "1/3", "I/2"),
        (2, "3/2", "no such shard"),
        (2, "0/2", "no such shard"),
        (2, "first", "I/2"),
        (1, "1/1", "without shards"),
        (1, "1/2", "no --shard"),
    ],
)
def test_a_wrong_shard_is_one_clear_error(arguments, monkeypatch, capsys, shards, shard, words):
    assert words in fails(monkeypatch, capsys, "select", *arguments(shards=shards), "--shard", shard)


def test_no_process_is_refused(arguments, monkeypatch, capsys):
    assert "--processes" in fails(monkeypatch, capsys, "select", *arguments(shards=2), "--processes", "0")


def test_a_foreign_pool_is_refused_before_anything_is_kept(tmp_path, arguments, monkeypatch, capsys, charter):
    asked = arguments(shards=1)
    asked[3] = str(charter.artifact.path)
    fails(monkeypatch, capsys, "select", *asked)
    assert not (Path(tmp_path) / ".collegium").exists()
