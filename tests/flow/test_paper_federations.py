"""The recipes of DDOME's data read what the hub holds: stand-ins with exactly the columns of its data sets."""

from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from collegium.core.load_recipe import load_recipe
from collegium.federated.recipe import FederatedRecipe
from collegium.flow.gather_clients import gather_clients

RECIPES = Path(__file__).parents[2] / "recipes" / "federated"
IMAGE, STRING = datasets.Image(), datasets.Value("string")
TOPICS = ["Society & Culture", "Science & Mathematics", "Health"]
COARSE, LETTERS = ["aquatic mammals", "fish"], ["A", "B", "C"]


def picture(number, mode="RGB", side=32):
    shape = (side, side, 3) if mode == "RGB" else (side, side)
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8))


def cifar(number):
    return {"img": picture(number), "label": number % 3}


def cifar_100(number):
    return {"img": picture(number), "fine_label": number % 12, "coarse_label": number % 2}


def letter(number):
    return {"image": picture(number, "L", 28), "label": number % 3}


def question(number):
    words = {"question_title": f"Why {number}?", "question_content": "" if number % 2 else "really"}
    return {"id": number, "topic": number % 3, **words, "best_answer": "because"}


FEW, MANY = (
    datasets.ClassLabel(names=["airplane", "bird", "cat"]),
    datasets.ClassLabel(names=[f"c{n}" for n in range(12)]),
)
HUB = {
    "uoft-cs/cifar10": (cifar, {"img": IMAGE, "label": FEW}),
    "uoft-cs/cifar100": (
        cifar_100,
        {"img": IMAGE, "fine_label": MANY, "coarse_label": datasets.ClassLabel(names=COARSE)},
    ),
    "tanganke/emnist_letters": (letter, {"image": IMAGE, "label": datasets.ClassLabel(names=LETTERS)}),
    "community-datasets/yahoo_answers_topics": (
        question,
        {"id": datasets.Value("int32"), "topic": datasets.ClassLabel(names=TOPICS)}
        | dict.fromkeys(("question_title", "question_content", "best_answer"), STRING),
    ),
}
EXPECTED = {  # recipe → classes, shape of an input of the experts
    "paper-cifar-10": (["airplane", "bird", "cat"], (3, 32, 32)),
    "paper-cifar-100": (sorted(MANY.names), (3, 32, 32)),
    "paper-emnist": (LETTERS, (3, 28, 28)),
    "paper-yahoo-answers": (sorted(TOPICS), (7,)),
}


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    def load_dataset(repository, configuration=None):
        row, features = HUB[repository]
        return datasets.DatasetDict(
            {
                split: datasets.Dataset.from_list(
                    [row(1000 * place + number) for number in range(120)], datasets.Features(features)
                )
                for place, split in enumerate(("train", "test"))
            }
        )

    def features(*arguments):
        return np.ones((len(arguments[-1]), 7), dtype=np.float32)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("collegium.models.efficientnet.efficientnet_features", features)
    monkeypatch.setattr("collegium.flow.common_features.embed_texts", features)
    monkeypatch.setattr("collegium.flow.common_features.load_seed_model", lambda name: name)


def test_every_recipe_of_the_papers_data_is_here():
    assert sorted(EXPECTED) == sorted(path.stem for path in RECIPES.glob("paper-*.yaml"))


@pytest.mark.parametrize("name", EXPECTED)
def test_recipes_read_the_hubs_columns(name, tmp_path):
    fewer = ["partition.num_clients=10", "partition.min_examples=5"]
    recipe = load_recipe(RECIPES / f"{name}.yaml", FederatedRecipe, fewer)
    found = gather_clients(recipe, tmp_path)
    classes, shape = EXPECTED[name]
    assert found.classes == classes
    assert found.data.inputs.shape == (240, *shape)
    assert recipe.algorithm.name == "ddome"
    for client in range(10):
        held = np.unique(found.of(client).labels)
        assert len(held) == recipe.partition.classes_per_client
