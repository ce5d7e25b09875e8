"""`collegium export`: one folder, or one clear error."""

import json
import re
import sys

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from collegium.cli import main as cli
from collegium.cli.export import To
from collegium.core.artifacts import read_artifact
from collegium.core.errors import InputError
from collegium.reports.wording import percent
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


def test_dropping_the_context_prints_how_often_the_model_agrees(unified, pool, seed_folder, tmp_path, monkeypatch):
    path = unified(decide="once")
    AutoTokenizer.from_pretrained(seed_folder).save_pretrained(path)
    arguments = ["export", path, "--to", "qwen3-moe", "--out", str(tmp_path / "out"), "--drop-context"]
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(cli.app, [*arguments, "--pool", str(pool.artifact.path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "out" / "agreement.json").read_bytes())
    assert re.search(
        rf"next token\W+{percent(told['next_token']['dropped'])}\W+{percent(told['next_token']['retuned'])}",
        result.output,
    )
    assert "expert in layer 2" in result.output
    assert f"expert where it is owner-0 ({percent(told['expert_shares']['owner-0'])} %)" in result.output
    assert f"judged on {told['judged_tokens']} others" in result.output


@pytest.mark.parametrize("alone", [["--drop-context"], ["--pool", "somewhere"]])
def test_dropping_and_pool_go_together(alone, unified, tmp_path):
    result = CliRunner().invoke(
        cli.app, ["export", unified(decide="once"), "--to", "gguf", "-o", str(tmp_path / "out"), *alone]
    )
    assert isinstance(result.exception, InputError)
    assert f"got: {alone[0]} alone" in str(result.exception)
