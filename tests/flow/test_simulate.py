"""The whole flow on tiny models: figures, cache, repeatability, and kills at random moments."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collegium.core.errors import InputError
from collegium.core.recipe import Recipe
from collegium.flow import simulate as flow
from collegium.flow.simulate import simulate
from tiny import DOMAINS


@pytest.fixture(scope="module")
def run(make_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    simulate(make_recipe(), folder)
    return folder


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_a_recipe_of_lora_experts_gives_a_model_of_their_factors(make_recipe, tmp_path) -> None:
    pytest.importorskip("peft")
    training = {"parameters": "lora", "rank": 3, "epochs": 1, "batch_size": 16, "learning_rate": 1e-2}
    simulate(make_recipe(training=training, router={"experts_per_token": 2, "fallback": True}), tmp_path)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["expert_ranks"] == [3, 3]
    assert set(summary(tmp_path)["accuracy"]["unified"]["union"]) == {*DOMAINS, "mean"}


def test_the_summary_holds_what_it_promises(run: Path) -> None:
    found = summary(run)
    methods = ["seed", "expert:farm", "expert:port", "soup", "unified", "oracle"]
    assert list(found["accuracy"]) == methods
    for method in methods:
        for setting in ("told", "union"):
            values = found["accuracy"][method][setting]
            assert set(values) == {*DOMAINS, "mean"}
            assert values["mean"] == pytest.approx(sum(values[name] for name in DOMAINS) / len(DOMAINS))
            assert all(
                found["accuracy"][method]["told"][name] >= found["accuracy"][method]["union"][name] for name in DOMAINS
            )
    assert 0 <= found["routing"]["sequence"] <= 1
    stages = ["pool", "charter", "contribute:farm", "contribute:port", "unify", "evaluate", "map"]
    assert list(found["stages"]) == stages
    assert set(found["coverage"]["owners"]) == set(DOMAINS)
    assert all(figures["seconds"] > 0 and figures["peak_bytes"] > 0 for figures in found["stages"].values())
    assert all(size > 0 for size in found["released_bytes"].values())
    assert set(found["hashes"]) == {
        "seed_model",
        "pool",
        "charter",
        "contribution:farm",
        "contribution:port",
        "unified",
    }
    assert found["settings"]["selection"]["size"] == 20


def test_the_same_recipe_and_seed_give_the_same_hashes(
    run: Path, make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    simulate(make_recipe(), tmp_path / "again")
    assert summary(tmp_path / "again")["hashes"] == summary(run)["hashes"]
    assert summary(tmp_path / "again")["accuracy"] == summary(run)["accuracy"]


def test_another_random_seed_gives_other_experts(run: Path, make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    simulate(make_recipe(random_seed=1), tmp_path / "other")
    assert summary(tmp_path / "other")["hashes"]["contribution:farm"] != summary(run)["hashes"]["contribution:farm"]


def test_a_finished_stage_is_not_run_again(
    run: Path, make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_arguments: object, **_keywords: object) -> None:
        raise AssertionError("a finished stage was run again")

    monkeypatch.setattr("collegium.owner.kept_expert.train_expert", never)
    monkeypatch.setattr("collegium.unify.unify.jointly_tuned", never)
    monkeypatch.setattr("collegium.selection.pool._embed", never)
    monkeypatch.setattr("collegium.flow.compare.dense_model", never)
    monkeypatch.setattr("collegium.flow.pool_map.project", never)
    before = summary(run)
    simulate(make_recipe(), run)
    assert summary(run) == before


def test_an_owner_without_data_cannot_be_simulated(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    owners = {"farm": {"prompt": "{label}", "labels": ["animal", "plant"]}}
    with pytest.raises(InputError, match="owners.farm.data is missing"):
        simulate(make_recipe(owners=owners), tmp_path)


def test_one_owner_is_enough(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    owners = {"farm": make_recipe().owners["farm"].model_dump()}
    simulate(make_recipe(owners=owners), tmp_path)
    assert summary(tmp_path)["accuracy"]["unified"] == summary(tmp_path)["accuracy"]["oracle"]
    assert summary(tmp_path)["routing"]["sequence"] == 1.0


def test_an_owner_may_keep_its_class_names_out_of_the_charter(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = make_recipe()
    owners = {name: owner.model_dump() for name, owner in recipe.owners.items()}
    owners["farm"]["publish_labels"] = False
    simulate(make_recipe(owners=owners), tmp_path)
    for file in [*(tmp_path / "charter").iterdir(), *(tmp_path / "model").glob("*.json")]:
        assert b"animal" not in file.read_bytes() or file.name.startswith("tokenizer")
    assert "farm" in summary(tmp_path)["accuracy"]["unified"]["union"]


def test_two_runs_in_one_folder_do_not_meet(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    with flow.alone(tmp_path), pytest.raises(InputError, match="Another run is at work"):
        simulate(make_recipe(), tmp_path)


def test_killed_at_ten_random_moments_it_ends_with_the_hashes_of_an_undisturbed_run(
    run: Path, make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = make_recipe()
    needed = sum(figures["seconds"] for figures in summary(run)["stages"].values())
    moments = random.Random(7)
    kills = 0
    for _ in range(10):
        child = os.fork()
        if child == 0:
            try:
                simulate(recipe, tmp_path / "run")
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0.02, 0.35) * needed)
        finished, _ = os.waitpid(child, os.WNOHANG)
        if not finished:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            kills += 1
    simulate(recipe, tmp_path / "run")
    assert kills >= 3
    assert summary(tmp_path / "run")["hashes"] == summary(run)["hashes"]
    leftovers = [
        path for path in (tmp_path / "run").rglob(".*") if ".building-" in path.name or ".replaced-" in path.name
    ]
    assert not leftovers
