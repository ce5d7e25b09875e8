"""Tiny random models and made-up texts: every command runs on them in seconds, on CPU, offline."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from transformers.utils import logging

from collegium.core.recipe import OwnerRecipe, PoolSettings, Recipe
from collegium.models.seed_model import SeedModel, load_seed_model
from collegium.owner.charter import Charter, write_charter
from collegium.owner.contribute import contribute
from collegium.privacy.release_store import ReleaseStore
from collegium.selection.pool import Pool, build_pool
from tiny import (
    DOMAINS,
    NO_OVERLAP_CHECK,
    POOL_WORDS,
    make_texts,
    make_tiny_decoder,
    make_tiny_seed,
    make_tiny_vision_seed,
    write_rows,
)

settings.register_profile("collegium", deadline=None)  # a busy machine is no fault
settings.load_profile("collegium")
logging.disable_progress_bar()
logging.set_verbosity_error()
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def seed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_seed(tmp_path_factory.mktemp("seed"))


@pytest.fixture(scope="session")
def seed(seed_folder: Path) -> SeedModel:
    return load_seed_model(str(seed_folder))


@pytest.fixture(scope="session")
def vision_seed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision_seed(tmp_path_factory.mktemp("vision-seed"))


@pytest.fixture(scope="session")
def vision_seed(vision_seed_folder: Path) -> SeedModel:
    return load_seed_model(str(vision_seed_folder))


@pytest.fixture(scope="session")
def decoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_decoder(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="session")
def decoder(decoder_folder: Path) -> SeedModel:
    return load_seed_model(str(decoder_folder))


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
def make_causal(decoder_folder: Path, data_folder: Path) -> Callable[..., Recipe]:
    """A tiny simulation recipe of a decoder; keyword arguments replace top-level keys."""

    def make(task: str = "causal-choice", **changes: object) -> Recipe:
        owners = {name: {"data": str(data_folder / f"{name}.jsonl"), "privacy": NO_OVERLAP_CHECK} for name in DOMAINS}
        values: dict = {
            "project": "causal",
            "seed_model": str(decoder_folder),
            "task": task,
            "max_length": 20,
            "pool": {"data": str(data_folder / "pool.jsonl")},
            "owners": owners,
            "selection": {"size": 20},
            "training": {"steps": 60, "batch_size": 16, "warmup_steps": 0, "learning_rate": 1e-3},
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
