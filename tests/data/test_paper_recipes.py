"""The paper's recipes read their data: stand-ins with exactly the columns that the hub's data sets have."""

from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from collegium.core.errors import DataError
from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import Columns, Recipe
from collegium.data.examples import load_splits, load_texts
from collegium.data.images import Picture
from collegium.data.sources import read_source, short_name
from collegium.models.tasks import prompted_names

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


IMAGE = datasets.Image()
PETS = {
    "image": IMAGE,
    "label": datasets.ClassLabel(names=["Abyssinian", "american bulldog", "beagle"]),
    "species": datasets.ClassLabel(names=["Cat", "Dog"]),
}
FLOWERS = {"image": IMAGE, "label": datasets.ClassLabel(names=["pink primrose", "colt's foot", "moon orchid"])}
EUROSAT = {
    "image": IMAGE,
    "label": datasets.ClassLabel(names=["Annual Crop", "Forest", "SeaLake"]),
    "filename": STRING,
}
IMAGENET = {"image": IMAGE, "label": datasets.ClassLabel(names=["tench, Tinca tinca", "beagle", "boxer"])}
NAMES = {  # owner → class names of the stand-ins
    "pets": PETS["label"].names,
    "flowers": FLOWERS["label"].names,
    "satellite": EUROSAT["label"].names,
}


def picture(number, hidden):
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return {"image": Image.fromarray(pixels), "label": -1 if hidden else number % 3}


def pet(number, hidden):
    return {**picture(number, False), "species": 0}


def flower(number, hidden):
    return picture(number, False)


def satellite(number, hidden):
    return {**picture(number, False), "filename": f"{number}.tif"}


HUB = {  # (repository, revision) → a row, its features, its splits
    ("tau/commonsense_qa", None): (commonsense, COMMONSENSE, ("train", "validation", "test")),
    ("allenai/cosmos_qa", "refs/convert/parquet"): (cosmos, COSMOS, ("train", "validation", "test")),
    ("lighteval/siqa", None): (social, SOCIAL, ("train", "validation")),
    ("tatsu-lab/alpaca", None): (alpaca, ALPACA, ("train",)),
    ("Donghyun99/Oxford-IIIT-Pet", None): (pet, PETS, ("train", "test")),
    ("dpdl-benchmark/oxford_flowers102", None): (flower, FLOWERS, ("train", "validation", "test")),
    ("blanchon/EuroSAT_RGB", None): (satellite, EUROSAT, ("train", "test", "validation")),
    ("evanarlian/imagenet_1k_resized_256", None): (picture, IMAGENET, ("train", "val", "test")),
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
    assert short_name(recipe.owners["stories"].data) == "cosmos_qa, cosmos_qa#validation"


def test_a_split_that_the_hub_does_not_have_is_an_error():
    with pytest.raises(DataError, match="no such split") as raised:
        read_source("lighteval/siqa#test", Columns())
    assert "train, validation" in str(raised.value)
    assert short_name("some/folder@home/file.csv") == "file.csv"


@pytest.mark.parametrize("name", ["llama-3.2-3b", "llama-3.1-8b"])
def test_the_pool_of_instructions_is_answered(name):
    pool = load_recipe(RECIPES / f"{name}.yaml", Recipe).pool
    examples = load_texts(pool.data, pool.columns, 20, 0)
    known = dict(zip(examples.texts, examples.labels, strict=True))
    assert len(known) == 20
    for text, answer in known.items():
        number = answer.removeprefix("done ")
        assert text == (f"Do {number}." if int(number) % 2 else f"Do {number}.\ninput {number}")


@pytest.mark.parametrize("name", ["clip-vit-b32", "clip-vit-b16"])
def test_owners_of_pictures_and_their_pool_read_the_hubs_columns(name):
    recipe = load_recipe(RECIPES / f"{name}.yaml", Recipe)
    domains = {}
    for owner, settings in recipe.owners.items():
        splits = load_splits(settings.data, settings.columns, settings.limits, 0, owner)
        assert all(isinstance(item, Picture) for item in splits.test.texts)
        assert splits.train.class_names == sorted(NAMES[owner])
        domains[owner] = (settings.prompt, splits.train.class_names)
    pool = load_texts(recipe.pool.data, recipe.pool.columns, None, 0)
    assert len(pool) == 30  # of one split: the labels of the test split are hidden
    names, sentences = prompted_names({**domains, ":pool": (recipe.pool.prompt, pool.class_names)})
    assert len(set(sentences)) == len(names) == 12
    assert recipe.router.context_weight == 0.3
