"""The paper's recipes read their data: stand-ins with exactly the columns that the hub's data sets have."""

from pathlib import Path

import datasets
import pytest

from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import Recipe
from collegium.data.examples import load_splits, load_texts

RECIPES = Path(__file__).parents[2] / "recipes"
STRING, STRINGS = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))
COMMONSENSE = {
    "id": STRING,
    "question": STRING,
    "question_concept": STRING,
    "choices": {"label": STRINGS, "text": STRINGS},
    "answerKey": STRING,
}
COSMOS = {
    **dict.fromkeys(("id", "context", "question", "answer0", "answer1", "answer2", "answer3"), STRING),
    "label": datasets.Value("int32"),
}
SOCIAL = dict.fromkeys(("context", "question", "answerA", "answerB", "answerC", "label"), STRING)
ALPACA = dict.fromkeys(("instruction", "input", "output", "text"), STRING)


def commonsense(number, hidden):
    return {
        "id": str(number),
        "question": f"Where is cow {number}?",
        "question_concept": "cow",
        "choices": {"label": list("ABCDE"), "text": ["sea", "barn", "moon", "book", "lamp"]},
        "answerKey": "" if hidden else "B",
    }


def cosmos(number, hidden):
    answers = {f"answer{place}": f"{place} of {number}" for place in range(4)}
    story = {"id": str(number), "context": f"Story {number}.", "question": "Why?"}
    return {**story, **answers, "label": -1 if hidden else 3}


def social(number, hidden):
    return {"context": f"Lee sat {number}.", "question": "Why?", "answerA": "a", "answerB": "b", "answerC": "c"} | {
        "label": "3"
    }


def alpaca(number, hidden):
    given = "" if number % 2 else f"input {number}"
    return {"instruction": f"Do {number}.", "input": given, "output": f"done {number}", "text": "all of it"}


HUB = {  # (repository, revision) → a row, its features, its splits
    ("tau/commonsense_qa", None): (commonsense, COMMONSENSE, ("train", "validation", "test")),
    ("allenai/cosmos_qa", "refs/convert/parquet"): (cosmos, COSMOS, ("train", "validation", "test")),
    ("lighteval/siqa", None): (social, SOCIAL, ("train", "validation")),
    ("tatsu-lab/alpaca", None): (alpaca, ALPACA, ("train",)),
}


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    def load_dataset(repository, configuration=None, revision=None):
        row, features, splits = HUB[repository, revision]
        parts = {}
        for place, split in enumerate(splits):
            rows = [row(100 * place + number, split == "test") for number in range(30)]
            parts[split] = datasets.Dataset.from_list(rows, datasets.Features(features))
        return datasets.DatasetDict(parts)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


@pytest.mark.parametrize("name", ["llama-3.2-3b", "llama-3.1-8b"])
def test_owners_of_questions_read_the_hubs_columns(name):
    recipe = load_recipe(RECIPES / f"{name}.yaml", Recipe)
    found = {}
    for owner, settings in recipe.owners.items():
        splits = load_splits(settings.data, settings.columns, settings.limits, 0, owner)
        assert len(splits.train) + len(splits.validation) == 30
        assert len(splits.test) == 30  # the hub's validation split: its test split has no labels
        found[owner] = splits.train.texts[0], splits.train.choices[0], splits.train.labels[0]
    assert found["commonsense"] == ("Where is cow 0?", ["sea", "barn", "moon", "book", "lamp"], "barn")
    assert found["stories"] == ("Story 0.\nWhy?", ["0 of 0", "1 of 0", "2 of 0", "3 of 0"], "3 of 0")
    assert found["manners"] == ("Lee sat 0.\nWhy?", ["a", "b", "c"], "c")
    assert recipe.router.context == "seed"


@pytest.mark.parametrize("name", ["llama-3.2-3b", "llama-3.1-8b"])
def test_the_pool_of_instructions_is_answered(name):
    pool = load_recipe(RECIPES / f"{name}.yaml", Recipe).pool
    examples = load_texts(pool.data, pool.columns, 20, 0)
    known = dict(zip(examples.texts, examples.labels, strict=True))
    assert len(known) == 20
    for text, answer in known.items():
        number = answer.removeprefix("done ")
        assert text == (f"Do {number}." if int(number) % 2 else f"Do {number}.\ninput {number}")
