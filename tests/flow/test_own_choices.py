"""The whole flow with owners whose examples have choices of their own, one of them beside an owner with classes."""

import json
import random

import pytest
from typer.testing import CliRunner

from collegium.cli.main import app
from collegium.core.errors import DataError, InputError
from collegium.core.recipe import OwnerRecipe, Recipe
from collegium.flow.evaluate_model import evaluate_model
from collegium.flow.predict import predict_items
from collegium.flow.simulate import owner_recipe, simulate
from collegium.owner.charter import read_charter
from collegium.owner.private_data import load_private
from collegium.unify.unified_folder import read_unified
from tiny import DOMAINS, NO_OVERLAP_CHECK, make_texts

WORDS = {"farm": (["cow", "pig", "hen"], ["wheat", "barley", "oat"]), "port": (["hull", "mast"], ["wave", "tide"])}


def write_questions(path, name, count=60):
    """The right answer is a word of an owner's first kind, the others are of its second; lists differ."""
    draw = random.Random(name)
    rows = []
    for question in make_texts([*WORDS[name][0], *WORDS[name][1]], count, name):
        texts = draw.sample([draw.choice(WORDS[name][0]), *draw.sample(WORDS[name][1], 2)], 3)
        right = next(index for index, text in enumerate(texts) if text in WORDS[name][0])
        rows.append({"question": question, "choices": {"label": ["A", "B", "C"], "text": texts}, "key": "ABC"[right]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def recipe(decoder_folder, data_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    columns = {"text": "question", "label": "key", "choices": "choices"}
    owners = {
        "farm": {"data": write_questions(folder / "farm.jsonl", "farm"), "columns": columns},
        "port": {"data": write_questions(folder / "port.jsonl", "port"), "columns": columns},
    }
    return Recipe.model_validate(
        {
            "project": "questions",
            "seed_model": str(decoder_folder),
            "task": "causal-choice",
            "max_length": 20,
            "pool": {"data": str(data_folder / "pool.jsonl"), "limit": 60},
            "owners": {name: {**owner, "privacy": NO_OVERLAP_CHECK} for name, owner in owners.items()},
            "selection": {"size": 20},
            "training": {"steps": 60, "batch_size": 16, "warmup_steps": 0, "learning_rate": 2e-3},
            "joint_tuning": {"batch_size": 16},
        }
    )


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "choices"
    simulate(recipe, folder)
    return folder


def test_right_answers_are_learnt_and_compete_with_their_own_alone(run):
    summary = json.loads((run / "summary.json").read_bytes())
    accuracy = summary["accuracy"]
    assert all(one["told"] == one["union"] for one in accuracy.values())
    assert accuracy["oracle"]["union"]["mean"] > accuracy["seed"]["union"]["mean"] + 0.15
    assert accuracy["unified"]["union"]["mean"] > accuracy["seed"]["union"]["mean"]
    assert summary["owners"]["farm"]["labels"] is None
    assert "kept out of the charter" not in (run / "report.html").read_text()


def test_no_class_names_leave_an_owner_with_own_choices(run):
    charter = read_charter(run / "charter")
    assert all(entry.labels is None for entry in charter.terms.owners.values())
    ledger = json.loads((run / "model" / "ledger.json").read_bytes())
    assert not any("class names" in entry["what"] for entry in ledger["farm"])
    assert read_unified(run / "model").classes.names == ()


def test_evaluation_apart_gives_the_figures_of_the_run(run, recipe):
    found = evaluate_model(run / "model", [owner_recipe(recipe, name) for name in DOMAINS], "test")
    summary = json.loads((run / "summary.json").read_bytes())
    assert found["accuracy"] == summary["accuracy"]["unified"]
    assert found["routing"] == summary["routing"]


def test_predictions_are_among_own_choices(run, recipe, tmp_path):
    unified = read_unified(run / "model")
    texts, choices = ["the old cow", "one hull"], [["cow", "wheat"], ["wave", "mast", "keel"]]
    answers = list(predict_items(unified, texts, [1, 2], choices=choices))
    assert all(answer["label"] in own for answer, own in zip(answers, choices, strict=True))
    assert all(1 / len(own) <= answer["probability"] <= 1 for answer, own in zip(answers, choices, strict=True))
    (alone,) = predict_items(unified, texts[1:], [2], "port", choices[1:])
    assert (alone["domain"], alone["label"]) == ("port", answers[1]["label"])
    assert alone["probability"] == pytest.approx(answers[1]["probability"], abs=1e-5)  # no batch-mate counts
    with pytest.raises(InputError, match="no such owner"):
        list(predict_items(unified, texts, [1, 2], "bank", choices))
    with pytest.raises(InputError, match="--choices"):
        list(predict_items(unified, texts, [1, 2]))
    data = recipe.owners["farm"].data
    command = ["predict", str(run / "model"), data, "--text", "question", "--choices", "choices", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert len(result.output.strip().splitlines()) == 60


def test_classes_and_own_choices_stand_side_by_side(recipe, data_folder, tmp_path):
    farm = recipe.owners["farm"].model_dump()
    port = {"data": str(data_folder / "port.jsonl"), "privacy": NO_OVERLAP_CHECK, "prompt": "{text} is {label}"}
    mixed = Recipe.model_validate({**recipe.model_dump(), "owners": {"farm": farm, "port": port}})
    mixed = mixed.model_copy(update={"training": mixed.training.model_copy(update={"steps": 3})})
    simulate(mixed, tmp_path / "run")
    accuracy = json.loads((tmp_path / "run" / "summary.json").read_bytes())["accuracy"]["unified"]
    assert accuracy["told"]["farm"] == accuracy["union"]["farm"]
    unified = read_unified(tmp_path / "run" / "model")
    assert unified.classes.domains == ["port"]
    with pytest.raises(InputError, match="different prompts"):
        list(predict_items(unified, ["a cow"], [1], choices=[["cow", "pig"]]))
    charter = read_charter(tmp_path / "run" / "charter")
    own = OwnerRecipe(name="port", data=farm["data"], columns=farm["columns"])
    with pytest.raises(DataError, match="choices of their own, but its charter names classes"):
        load_private(charter, own)


def test_own_choices_are_for_causal_choice_and_exclude_labels(recipe):
    values = recipe.model_dump()
    with pytest.raises(ValueError, match=r"columns\.choices is for task: causal-choice"):
        Recipe.model_validate({**values, "task": "label-matching", "router": {}})
    values["owners"]["farm"]["labels"] = ["a", "b"]
    with pytest.raises(ValueError, match="exclude each other"):
        Recipe.model_validate(values)


def test_a_question_with_choices_of_its_own_is_explained_without_them(run):
    text = " ".join(["the old cow and pig and hen"] * 2)  # longer than the warm-up
    result = CliRunner().invoke(app, ["explain", str(run / "model"), text])
    assert result.exit_code == 0, result.output
    assert "farm × 1.00" in result.output or "port × 1.00" in result.output
