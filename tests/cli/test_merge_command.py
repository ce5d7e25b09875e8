"""`collegium merge`: fine-tunes in, a model folder out, every fault in one error."""

import sys
from pathlib import Path

import pytest
from transformers import AutoModel
from typer.testing import CliRunner

from collegium.cli import main as cli
from collegium.core.artifacts import read_artifact
from finetunes import finetune


@pytest.fixture(scope="module")
def experts(seed_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("experts")
    return {name: finetune(seed_folder, folder / name, random_seed=i) for i, name in enumerate(("farm", "port"))}


def command(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli.app, ["merge", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_two_folders_become_one_model(
    seed_folder: Path, experts: dict[str, Path], data_folder: Path, tmp_path: Path
) -> None:
    output = command(
        seed_folder, f"farm={experts['farm']}", f"port={experts['port']}", "--to", tmp_path / "model",
        "--dtype", "bfloat16", "--experts-per-token", "2", "--set", "decide=once", "--set", "decide_layer=0",
        "--examples", f"farm={data_folder / 'farm.jsonl'}", "--examples", f"port={data_folder / 'port.jsonl'}",
    )  # fmt: skip
    assert "2 experts" in output
    assert read_artifact(tmp_path / "model", "merged-model").sha256 in output
    config = AutoModel.from_pretrained(tmp_path / "model").config
    assert config.expert_names == ["farm", "port"]
    assert (config.experts_per_token, config.decide, config.decide_layer) == (2, "once", 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["farm"], "not of the form NAME=PATH"),
        (["Farm=x"], "not of the form NAME=PATH"),
        (["../x=y"], "not of the form NAME=PATH"),
        (["farm={farm}", "farm={port}"], "farm twice"),
        (["farm={farm}", "--set", "decide=never"], "decide"),
        (["farm={farm}", "--examples", "farm"], "--examples has an entry"),
        (["farm={farm}", "port=nowhere"], "port nowhere is no folder"),
    ],
    ids=str,
)
def test_a_wrong_command_is_one_clear_error(
    arguments: list[str],
    words: str,
    seed_folder: Path,
    experts: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [argument.format(**experts) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["collegium", "merge", str(seed_folder), *given, "--to", str(tmp_path / "model")])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert not (tmp_path / "model").exists()
