"""`explain` on a terminal and as a page, of a tiny unified model."""

import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from collegium.cli import main as cli
from collegium.cli.explain_print import print_explanation
from collegium.core.errors import CollegiumError, DataError
from collegium.evaluation.explain import Explanation, Step, Stretch, Token, explain_text
from collegium.unify.unified_folder import read_unified
from collegium.unify.unify import unify


@pytest.fixture(scope="module")
def model(charter, contributions, pool, seed, tmp_path_factory) -> Path:
    return unify(charter, list(contributions.values()), pool, seed, tmp_path_factory.mktemp("explain") / "model").path


def explain(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli.app, ["explain", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_text_is_shown_with_the_experts_of_its_tokens(model):
    output = explain(model, "the old cow")
    step = explain_text(read_unified(model).encoder, "the old cow").stretches[-1].steps[0]
    owner = ["farm", "port"][step.expert]
    assert "layer 0, before the decision\n‹[CLS] the old cow [SEP]› seed" in output
    assert f"layers 1–2\n‹[CLS] the old cow [SEP]› {owner}" in output
    assert f"{owner} × 1.00 {100 * (step.probability or 0):.1f} %" in output
    assert f"routed tokens: {owner} 100.0 %" in output


def test_a_file_is_explained_line_by_line_and_as_a_page(model, tmp_path):
    (tmp_path / "texts.txt").write_text("the old cow\n\n<b>new</b> ship\n")
    output = explain(model, tmp_path / "texts.txt", "--html", tmp_path / "page.html")
    assert re.findall(r"layers 1–2\n‹(.*)›", output) == ["[CLS] the old cow [SEP]", "[CLS] <b>new</b> ship [SEP]"]
    page = (tmp_path / "page.html").read_text()
    assert "<h2><bdi>the old cow</bdi></h2>" in page
    assert "<h2><bdi>&lt;b&gt;new&lt;/b&gt; ship</bdi></h2>" in page
    assert "<h1><bdi>tiny</bdi></h1>" in page


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("no-such-file.txt", "no-such-file.txt cannot be read"),
        ("", "no text to explain"),
        (" \n", "no text to explain"),
    ],
)
def test_what_is_no_text_is_refused(source, words, model):
    with pytest.raises(DataError, match=words):
        explain(model, source)


def test_too_many_texts_are_refused(model, tmp_path):
    (tmp_path / "texts.txt").write_text("a cow\n" * 51)
    with pytest.raises(DataError, match="at most 50"):
        explain(model, tmp_path / "texts.txt")


def test_a_text_longer_than_a_file_name_is_a_text(model):
    assert "beyond the model's longest input" in explain(model, "cow " * 2000)


def test_something_else_than_a_model_is_refused(charter):
    with pytest.raises(CollegiumError, match="another kind of artifact"):
        explain(charter.artifact.path, "a cow")


def test_hostile_names_and_tokens_do_not_steer_the_terminal():
    hostile = "[red]\x1b[31m\u202e"
    one = Explanation(
        hostile, 0, [hostile, "seed"], [Token(hostile, False, False)], [Stretch(0, 1, True, [Step({0: 1.0}, 0.5)])]
    )
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        print_explanation(one, console)
    shown = captured.get()
    assert "‹[red]\\x1b[31m\\u202e› [red]\\x1b[31m\\u202e" in shown
    assert not {"\x1b", "\u202e"} & set(shown)


def test_the_command_has_help():
    assert "--html" in explain("--help")
