"""`collegium evaluate --lm-eval`: the harness on a tiny decoder, with the task of the documentation and local data."""

import json
import re
import sys
from importlib import util
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from collegium.cli import main as cli
from collegium.core.errors import InputError
from collegium.evaluation.lm_harness import run_harness
from families import tiny_seed, tiny_unified
from tiny import DOMAINS, make_texts

PAGE = Path(__file__).parents[2] / "docs" / "lm-eval.md"
QUESTIONS = [
    {"text": text, "choices": ["ship", "the big animal"], "answer": row % 2}
    for row, text in enumerate(make_texts(DOMAINS["farm"]["animal"], 10, "questions"))
]
needs_harness = pytest.mark.skipif(
    util.find_spec("lm_eval") is None, reason="needs lm-eval: the extra eval, 80 MB that `make setup` leaves out"
)
# Of the harness and of what it imports.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def write_model(seed_folder: Path, tmp_path: Path):
    def write(**options: object) -> Path:
        folder = tmp_path / "model"
        tiny_unified(tiny_seed("llama"), noise=0.3, decide="every-layer", **options).save_pretrained(folder)
        AutoTokenizer.from_pretrained(seed_folder, eos_token="[SEP]").save_pretrained(folder)
        words = json.loads((folder / "tokenizer.json").read_text())  # an encoder's: without what it puts around a text
        (folder / "tokenizer.json").write_text(json.dumps(words | {"post_processor": None}))
        return folder

    return write


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """The task of docs/lm-eval.md over made-up questions."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "triage.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    [task] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (folder / "triage.yaml").write_text(task.replace("tasks/triage.jsonl", str(folder / "triage.jsonl")))
    return folder


def accuracies(model: Path) -> dict[str, float]:
    """The plain loop: each choice's log-likelihood after the question, in all and for each letter."""
    decoder, tokenizer = AutoModelForCausalLM.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    right = {"acc,none": 0, "acc_norm,none": 0}
    for row in QUESTIONS:
        sums = []
        for choice in row["choices"]:
            prompt = tokenizer(f"{row['text']}\nThis is", add_special_tokens=False).input_ids
            answer = tokenizer(f" {choice}", add_special_tokens=False).input_ids
            with torch.no_grad():
                logs = decoder(input_ids=torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
            sums.append(sum(logs[len(prompt) + i - 1, token].item() for i, token in enumerate(answer)))
        each = [total / len(choice) for total, choice in zip(sums, row["choices"])]
        right["acc,none"] += sums.index(max(sums)) == row["answer"]
        right["acc_norm,none"] += each.index(max(each)) == row["answer"]
    return {name: count / len(QUESTIONS) for name, count in right.items()}


@needs_harness
@pytest.mark.parametrize("context", ["causal", "seed"])
def test_the_harness_finds_what_a_plain_loop_finds(context, write_model, tasks):
    model = write_model(context=context)
    found = run_harness(model, ["triage"], tasks)
    expected = accuracies(model)
    assert {name: found["results"]["triage"][name] for name in expected} == expected
    assert found["n-samples"]["triage"]["effective"] == len(QUESTIONS)


@needs_harness
def test_the_command_prints_a_table_or_json(write_model, tasks):
    arguments = ["evaluate", str(write_model()), "--lm-eval", "triage", "--lm-eval-tasks-folder", str(tasks)]
    table = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert table.exit_code == 0, table.output
    found = CliRunner().invoke(cli.app, [*arguments, "--json"], catch_exceptions=False)
    results = json.loads(found.stdout)["results"]["triage"]
    for metric in ("acc", "acc_norm"):
        assert re.search(rf"triage\s+│ {metric} .*{results[f'{metric},none']:.4f}", table.stdout)


def refused(monkeypatch, capsys, *arguments: str | Path) -> str:
    monkeypatch.setattr(sys, "argv", ["collegium", "evaluate", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    return capsys.readouterr().err


@needs_harness
def test_an_unknown_task_or_absent_data_are_clear_errors(write_model, tasks, monkeypatch, capsys):
    model = write_model()
    error = refused(monkeypatch, capsys, model, "--lm-eval", "triage,nothing", "--lm-eval-tasks-folder", tasks)
    assert "no such task" in error
    assert "got: nothing" in error
    assert "triage (of" in error
    assert "is not there" in refused(
        monkeypatch, capsys, model, "--lm-eval", "a", "--lm-eval-tasks-folder", tasks / "x"
    )
    (tasks / "triage.jsonl").unlink()
    error = refused(monkeypatch, capsys, model, "--lm-eval", "triage", "--lm-eval-tasks-folder", tasks)
    assert "cannot be loaded" in error
    assert "triage" in error


def test_without_the_harness_the_error_says_what_to_install(write_model, monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'collegium\[eval\]'"):
        run_harness(write_model(), ["triage"])


def test_an_encoder_and_a_folder_of_something_else_are_refused(seed_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("collegium.evaluation.lm_harness.importlib.util.find_spec", lambda name: object())
    tiny_unified(tiny_seed("bert")).save_pretrained(tmp_path / "encoder")
    for folder in (tmp_path / "encoder", seed_folder):
        with pytest.raises(InputError, match="no unified decoder"):
            run_harness(folder, ["triage"])
    with pytest.raises(InputError, match="no unified model"):
        run_harness(tmp_path, ["triage"])


@pytest.mark.parametrize("arguments", [[], ["recipe.yaml", "--lm-eval", "triage"]], ids=["neither", "both"])
def test_a_recipe_or_tasks_but_not_both(arguments, tmp_path, monkeypatch, capsys):
    assert "either a recipe or --lm-eval" in refused(monkeypatch, capsys, tmp_path, *arguments)


def test_the_task_of_the_page_is_yaml_over_local_data():
    [task] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert yaml.safe_load(task)["dataset_path"] == "json"
