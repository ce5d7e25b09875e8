"""Tiny random models and made-up texts: every command runs on them in seconds, on CPU, offline."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils import logging

from collegium.core.recipe import OwnerRecipe, PoolSettings, Recipe
from collegium.models.seed_model import SeedModel, load_seed_model
from collegium.owner.charter import Charter, write_charter
from collegium.owner.contribute import contribute
from collegium.privacy.release_store import ReleaseStore
from collegium.selection.pool import Pool, build_pool

DOMAINS = {
    "farm": {"animal": ["cow", "pig", "hen", "goat"], "plant": ["wheat", "barley", "oat", "rye"]},
    "port": {"ship": ["hull", "mast", "keel", "sail"], "sea": ["wave", "tide", "salt", "foam"]},
}
COMMON = ["the", "a", "old", "new", "big", "small", "red", "blue", "near", "far", "here", "there", "one", "two"]
POOL_WORDS = ["stone", "cloud", "lamp", "chair", "book", "road", "bridge", "clock", "glass", "paper"]
NO_OVERLAP_CHECK = {"overlap_similarity": 1.0}  # to a random encoder, all short texts are alike

logging.disable_progress_bar()
logging.set_verbosity_error()
torch.set_num_threads(1)


def make_texts(words: list[str], count: int, name: str) -> list[str]:
    """Distinct made-up texts of 3 to 9 words."""
    generator = random.Random(name)
    texts: dict[str, None] = {}
    while len(texts) < count:
        length = generator.randint(3, 9)
        texts[" ".join(generator.choice(words + COMMON) for _ in range(length))] = None
    return list(texts)


def make_tiny_seed(folder: Path, random_seed: int = 0, layers: int = 3) -> Path:
    """A random BERT of 3 layers with a word tokenizer, in Hugging Face format."""
    words = [*COMMON, *POOL_WORDS, *DOMAINS, "about"]
    words += [word for labels in DOMAINS.values() for label, own in labels.items() for word in [label, *own]]
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **special).save_pretrained(folder)
    torch.manual_seed(random_seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def write_rows(path: Path, domain: str, count: int, name: str = "") -> Path:
    """Labelled JSONL of one domain, `count` rows for each class."""
    rows = [
        {"text": text, "label": label}
        for label, words in DOMAINS[domain].items()
        for text in make_texts(words, count, f"{domain}{label}{name}")
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def seed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_seed(tmp_path_factory.mktemp("seed"))


@pytest.fixture(scope="session")
def seed(seed_folder: Path) -> SeedModel:
    return load_seed_model(str(seed_folder))


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`farm.jsonl`, `port.jsonl` and `pool.jsonl`."""
    folder = tmp_path_factory.mktemp("data")
    for domain in DOMAINS:
        write_rows(folder / f"{domain}.jsonl", domain, 30)
    pool = make_texts(POOL_WORDS, 120, "pool")
    (folder / "pool.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in pool))
    return folder


@pytest.fixture(scope="session")
def make_recipe(seed_folder: Path, data_folder: Path) -> Callable[..., Recipe]:
    """A tiny simulation recipe; keyword arguments replace top-level keys."""

    def make(**changes: object) -> Recipe:
        values: dict = {
            "project": "tiny",
            "seed_model": str(seed_folder),
            "max_length": 16,
            "pool": {"data": str(data_folder / "pool.jsonl")},
            "owners": {
                name: {
                    "data": str(data_folder / f"{name}.jsonl"),
                    "prompt": name + " about {label}",
                    "privacy": NO_OVERLAP_CHECK,
                }
                for name in DOMAINS
            },
            "selection": {"size": 20},
            "training": {"epochs": 1, "batch_size": 16, "warmup_steps": 0, "learning_rate": 1e-3},
            "joint_tuning": {"batch_size": 16},
        }
        return Recipe.model_validate(values | changes)

    return make


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory, seed: SeedModel, data_folder: Path) -> Pool:
    settings = PoolSettings(data=str(data_folder / "pool.jsonl"))
    return build_pool(tmp_path_factory.mktemp("artifacts") / "pool", settings, seed, random_seed=0)


@pytest.fixture(scope="session")
def make_charter(
    tmp_path_factory: pytest.TempPathFactory, make_recipe: Callable[..., Recipe], seed: SeedModel, pool: Pool
) -> Callable[..., Charter]:
    """A charter of the tiny recipe; keyword arguments replace top-level keys of the recipe."""

    def make(**changes: object) -> Charter:
        path = tmp_path_factory.mktemp("charter") / "charter"
        labels = {name: list(labels) for name, labels in DOMAINS.items()}
        return write_charter(path, make_recipe(**changes), seed, pool, labels)

    return make


@pytest.fixture(scope="session")
def charter(make_charter: Callable[..., Charter]) -> Charter:
    return make_charter()


@pytest.fixture(scope="session")
def contributions(
    tmp_path_factory: pytest.TempPathFactory, charter: Charter, pool: Pool, seed: SeedModel, data_folder: Path
) -> dict[str, Path]:
    """One real contribution of each owner under `charter`; copy before changing."""
    folder = tmp_path_factory.mktemp("contributions")
    for name in DOMAINS:
        recipe = OwnerRecipe(name=name, data=str(data_folder / f"{name}.jsonl"), privacy=NO_OVERLAP_CHECK)
        contribute(charter, recipe, pool, seed, folder / name, ReleaseStore(folder / "stores" / name))
    return {name: folder / name for name in DOMAINS}
