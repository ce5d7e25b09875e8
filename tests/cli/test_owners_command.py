"""`owners list`, `add` and `remove`, as a coordinator types them."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from collegium.cli import main as cli
from collegium.core.artifacts import read_artifact
from collegium.core.errors import InputError
from collegium.flow.simulate import simulate
from collegium.unify.unified_folder import read_unified
from collegium.unify.unify import unify


@pytest.fixture(scope="module")
def farm_alone(charter, contributions, pool, seed, tmp_path_factory) -> Path:
    return unify(charter, [contributions["farm"]], pool, seed, tmp_path_factory.mktemp("owners") / "model").path


def owners(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli.app, ["owners", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_an_owner_is_added_listed_and_removed(farm_alone, contributions, charter, pool, seed_folder, tmp_path):
    before = read_artifact(farm_alone).sha256
    output = owners(
        "add", farm_alone, contributions["port"], "--charter", charter.artifact.path,
        "--pool", pool.artifact.path, "--seed-model", seed_folder, "--out", tmp_path / "two",
    )  # fmt: skip
    assert "`port` was added" in output
    assert "joint tuning was not run again" in output
    assert read_artifact(tmp_path / "two").sha256 in output
    listed = " ".join(owners("list", tmp_path / "two").split())
    for shown in ("farm", "port", "animal", "ship", "class names", read_artifact(contributions["port"]).sha256[:9]):
        assert shown in listed
    output = owners("remove", tmp_path / "two", "farm", "--out", tmp_path / "one")
    assert "Of its influence this remains: " in output
    assert "Only unifying the others' contributions again removes it" in output
    assert read_unified(tmp_path / "one").experts == ["port"]
    assert "animal" not in owners("list", tmp_path / "one")
    assert read_artifact(farm_alone).sha256 == before


@pytest.fixture(scope="module")
def decoder_run(make_causal, tmp_path_factory) -> Path:
    """Two owners of choices, with a question of its own for each."""
    owners = {
        name: {**one.model_dump(), "prompt": f"{{text}} {name} Answer: {{label}}"}
        for name, one in make_causal().owners.items()
    }
    training = {"steps": 2, "batch_size": 16, "parameters": "lora", "rank": 2}
    folder = tmp_path_factory.mktemp("decoder-run") / "run"
    simulate(make_causal(owners=owners, training=training), folder)
    return folder


def test_an_owner_of_a_decoder_leaves_and_comes_back(decoder_run, decoder_folder, tmp_path):
    output = owners("remove", decoder_run / "model", "port", "--out", tmp_path / "one")
    assert "Of its influence this remains: " in output
    listed = " ".join(owners("list", tmp_path / "one").split())
    assert "farm" in listed
    assert "port" not in listed
    assert "Tokens with fewer than 8 up to themselves take the seed model's own (warm-up)." in listed
    assert read_unified(tmp_path / "one").facts["prompts"] == {"farm": "{text} farm Answer: {label}"}
    owners(
        "add", tmp_path / "one", decoder_run / "contributions" / "port", "--charter", decoder_run / "charter",
        "--pool", decoder_run / "pool", "--seed-model", decoder_folder, "--out", tmp_path / "two",
    )  # fmt: skip
    assert "ship" in owners("list", tmp_path / "two")
    before, after = (read_unified(path).classes for path in (decoder_run / "model", tmp_path / "two"))
    assert before == after


def test_a_stranger_cannot_be_removed(farm_alone, tmp_path):
    with pytest.raises(InputError, match="no expert of this owner"):
        owners("remove", farm_alone, "port", "--out", tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["list", "add", "remove"])
def test_every_command_has_help(name):
    assert "MODEL" in owners(name, "--help")
