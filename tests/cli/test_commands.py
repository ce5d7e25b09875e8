"""What a user sees: exit codes, one clear error, and answers that can be read by people and by programs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from collegium.cli import main as cli
from collegium.core.artifacts import read_artifact
from collegium.core.progress import set_quiet
from collegium.core.recipe import Recipe


@pytest.fixture
def recipe_file(make_recipe: Callable[..., Recipe], tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(make_recipe().model_dump(mode="json")))
    return path


@pytest.fixture(scope="module")
def run_folder(make_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli-run")
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(make_recipe().model_dump(mode="json")))
    result = CliRunner().invoke(cli.app, ["run", str(path), "--out", str(folder / "run")], catch_exceptions=False)
    assert result.exit_code == 0
    assert "unified" in result.output
    return folder


def command(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, str]:
    """Exit code and standard error of a command that must fail, as the console script would give them."""
    monkeypatch.setattr(sys, "argv", ["collegium", *(str(argument) for argument in arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return int(stopped.value.code or 0), error


@pytest.fixture(autouse=True)
def _loud_again():
    yield
    set_quiet(False)


def test_run_writes_summary_report_and_model(run_folder: Path) -> None:
    assert {"summary.json", "report.html", "model", "pool", "charter", "contributions"} <= {
        path.name for path in (run_folder / "run").iterdir()
    }


def test_a_wrong_recipe_names_every_fault_and_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("seed_model: minilm\npool: {data: wordnet}\nowners: {}\nrouter: {initt: lda}\nrandom_seed: -1\n")
    code, error = fails(monkeypatch, capsys, "run", path, "--out", tmp_path / "run")
    assert code == 2
    assert "did you mean init?" in error
    assert "random_seed" in error
    assert "owners" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed_model=no-such-model", "no-such-model"),
        ("owners.farm.data=nowhere.jsonl", "nowhere.jsonl"),
        ("owners.farm.columns.text=body", "body"),
        ("owners.farm.data=null", "owners.farm.data is missing"),
        ("router.decide_layer=9", "decide_layer"),
        ("router.experts_per_token=5", "experts_per_token"),
        ("pool.prompt=a {label}", "labels"),
        ("nonsense", "key=value"),
    ],
)
def test_a_wrong_value_is_one_clear_error(
    override: str,
    words: str,
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, error = fails(monkeypatch, capsys, "run", recipe_file, "--out", tmp_path / "run", "--set", override)
    assert code == 2
    assert words in error


def test_ctrl_c_says_that_the_run_goes_on(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("collegium.flow.simulate.simulate", interrupted)
    code, error = fails(monkeypatch, capsys, "run", recipe_file, "--out", tmp_path / "run")
    assert code == 130
    assert "goes on from here" in error


@pytest.mark.parametrize("arguments", [["run"], ["run", "x.yaml", "--no-such-option"], ["fly"]])
def test_a_wrong_command_line_exits_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = fails(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "Usage" in error


def test_another_seed_model_is_refused_with_both_fingerprints(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tiny import make_tiny_seed

    other = make_tiny_seed(tmp_path / "other", random_seed=1)
    run = run_folder / "run"
    code, error = fails(
        monkeypatch, capsys, "unify", run / "charter", run / "contributions" / "farm",
        "--pool", run / "pool", "--seed-model", other, "--out", tmp_path / "model",
    )  # fmt: skip
    assert code == 2
    assert "seed model is not the one" in error
    assert not (tmp_path / "model").exists()


def test_inspect_tells_what_a_contribution_reveals(run_folder: Path) -> None:
    output = command("inspect", run_folder / "run" / "contributions" / "farm")
    for word in ("contribution", "routing vectors", "infinity", "proxies", "expert.safetensors"):
        assert word in output


@pytest.mark.parametrize("name", ["pool", "charter", "evaluation", "model"])
def test_inspect_reads_every_artifact(name: str, run_folder: Path) -> None:
    path = run_folder / "run" / name
    output = command("inspect", path)
    assert read_artifact(path).sha256 in output  # whole: owners compare it
    assert (name == "charter") == ("decide_layer" in output)  # what was agreed is shown


def test_evaluate_gives_the_figures_of_the_run(run_folder: Path) -> None:
    summary = json.loads((run_folder / "run" / "summary.json").read_text())
    output = command("evaluate", run_folder / "run" / "model", run_folder / "tiny.yaml", "--json")
    results = json.loads(output[output.index("{") :])
    assert results["accuracy"] == summary["accuracy"]["unified"]
    assert results["routing"] == summary["routing"]
    assert "union" in command("evaluate", run_folder / "run" / "model", run_folder / "tiny.yaml")


def test_predict_reads_lines_and_tables_and_answers_in_order(run_folder: Path, tmp_path: Path) -> None:
    lines = tmp_path / "texts.txt"
    lines.write_text("the old cow\n\nnew ship here\n")
    table = tmp_path / "texts.csv"
    table.write_text("body\nthe old cow\nnew ship here\n")
    model = run_folder / "run" / "model"
    answers = [json.loads(line) for line in command("predict", model, lines).splitlines()]
    assert [answer["text"] for answer in answers] == ["the old cow", "new ship here"]
    assert answers == [json.loads(line) for line in command("predict", model, table, "--text", "body").splitlines()]
    told = [json.loads(line) for line in command("predict", model, lines, "--domain", "port").splitlines()]
    assert {answer["domain"] for answer in told} == {"port"}
    assert all(sum(answer["experts"].values()) == pytest.approx(1, abs=1e-3) for answer in answers)


def test_predict_of_an_unknown_domain_is_refused(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "texts.txt"
    lines.write_text("the old cow\n")
    code, error = fails(monkeypatch, capsys, "predict", run_folder / "run" / "model", lines, "--domain", "bakery")
    assert code == 2
    assert "farm, port" in error


def test_report_is_made_again_from_the_summary(run_folder: Path, tmp_path: Path) -> None:
    command("report", run_folder / "run", "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == (run_folder / "run" / "report.html").read_bytes()


def test_every_command_has_help() -> None:
    names = (
        "run",
        "pool",
        "charter",
        "select",
        "contribute",
        "inspect",
        "unify",
        "merge",
        "evaluate",
        "predict",
        "explain",
        "export",
        "report",
    )
    for name in names:
        assert "Usage" in command(name, "--help")
