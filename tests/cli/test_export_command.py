"""`collegium export`: one folder, or one clear error."""

import sys

import pytest
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from collegium.cli import main as cli
from collegium.cli.export import To
from collegium.core.artifacts import read_artifact
from collegium.unify.export_targets import TARGETS
from families import tiny_seed, tiny_unified


@pytest.fixture
def unified(tmp_path):
    def write(**options):
        model = tiny_unified(tiny_seed("qwen3"), context="token", **options)
        for router in model.routers.values():
            router.centre.data.zero_()
        model.save_pretrained(tmp_path / "unified")
        return str(tmp_path / "unified")

    return write


def test_the_command_writes_a_folder_that_transformers_loads_and_inspect_reads(unified, tmp_path):
    arguments = ["export", unified(decide="every-layer"), "--to", "qwen3-moe", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert read_artifact(tmp_path / "out").sha256 in result.output
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path / "out")).__name__ == "Qwen3MoeForCausalLM"
    assert "exported-model" in CliRunner().invoke(cli.app, ["inspect", str(tmp_path / "out")]).output


def test_the_command_writes_a_gguf_file(unified, tmp_path):
    pytest.importorskip("gguf")
    path = unified(decide="every-layer")
    result = CliRunner().invoke(cli.app, ["export", path, "--to", "gguf", "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "model.gguf").stat().st_size > 0


@pytest.mark.parametrize("to", ["qwen3-moe", "gguf"])
def test_what_cannot_be_exported_ends_with_exit_code_2_and_no_folder(to, unified, tmp_path, monkeypatch, capsys):
    path = unified(decide="once")
    monkeypatch.setattr(sys, "argv", ["collegium", "export", path, "--to", to, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert "router.decide = once" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_target_is_offered():
    assert set(To) == {*TARGETS, "gguf"}
