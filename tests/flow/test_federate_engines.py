"""The command itself under each engine: killed at random moments it ends as one that was not, and all engines agree."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from collegium.core.errors import InputError
from collegium.federated.recipe import FederatedRecipe
from collegium.flow.federate import federate
from tiny import write_all_domains

ROUNDS = 60


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, seed_folder):
    """Scaffold: its clients keep a state."""
    folder = tmp_path_factory.mktemp("recipe")
    values = {
        "data": str(write_all_domains(folder / "texts.jsonl", 40)),
        "common_expert": str(seed_folder),
        "partition": {"kind": "pathological", "num_clients": 10, "classes_per_client": 2},
        "algorithm": {"name": "scaffold", "network": {"kind": "linear"}, "local": {"learning_rate": 0.5}},
        "rounds": {"rounds": ROUNDS, "clients_per_round": 3},
        "evaluation": {"every": 20, "averaged": 2},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    return folder / "recipe.yaml"


def command(recipe, folder, engine="in-process"):
    options = ["--quiet", "--threads", "1", "--engine", engine, "--out", str(folder)]
    return [sys.executable, "-m", "collegium.cli.main", "federate", str(recipe), *options]


def final(folder):
    """What a run ends with: the result, a line for each round, the server's arrays and the clients'."""
    states = {path.relative_to(folder): path.read_bytes() for path in (folder / "clients").rglob("*.safetensors")}
    arrays = load_file(folder / "checkpoint" / "arrays.safetensors")
    texts = [(folder / name).read_text() for name in ("federation.json", "metrics.jsonl")]
    return texts, {name: array.tobytes() for name, array in arrays.items()}, states


def killed_after(recipe, folder, engine, lines, pause):
    """Kill the command, with all that it started, a moment after these lines are written; False = it was faster."""
    metrics = folder / "metrics.jsonl"
    with subprocess.Popen(command(recipe, folder, engine), start_new_session=True) as child:
        try:
            while child.poll() is None and (metrics.read_text().count("\n") if metrics.is_file() else 0) < lines:
                time.sleep(0.005)
            time.sleep(pause)
            return child.poll() is None
        finally:
            os.killpg(child.pid, signal.SIGKILL) if child.poll() is None else None


def survives(recipe, tmp_path, engine, kills):
    moments = random.Random(5)
    undisturbed = federate(_read(recipe), tmp_path / "undisturbed").parent
    killed = tmp_path / "killed"
    counts = sorted(moments.randrange(1, ROUNDS - 15) for _ in range(kills))
    done = [killed_after(recipe, killed, engine, lines, moments.uniform(0, 0.03)) for lines in counts]
    assert any(done)
    subprocess.run(command(recipe, killed, engine), check=True)
    assert final(killed) == final(undisturbed)


def _read(recipe, **changes):
    return FederatedRecipe.model_validate(yaml.safe_load(Path(recipe).read_text()) | changes)


def test_a_killed_command_ends_as_one_that_was_not(recipe, tmp_path):
    survives(recipe, tmp_path, "in-process", kills=2)


@pytest.mark.slow
def test_a_killed_simulation_ends_as_one_that_was_not(recipe, tmp_path):
    pytest.importorskip("ray", reason="the extra `federated` is not installed")
    survives(recipe, tmp_path, "simulation", kills=2)


def test_a_simulation_ends_as_one_process_does_to_the_last_bit(recipe, tmp_path):
    pytest.importorskip("ray", reason="the extra `federated` is not installed")
    short = ["--set", "rounds.rounds=4", "--set", "evaluation.every=2"]
    subprocess.run([*command(recipe, tmp_path / "simulation", "simulation"), *short], check=True)
    changes = {"rounds": {"rounds": 4, "clients_per_round": 3}, "evaluation": {"every": 2, "averaged": 2}}
    federate(_read(recipe, **changes), tmp_path / "in-process")
    assert final(tmp_path / "simulation") == final(tmp_path / "in-process")


def test_without_flower_the_simulation_says_what_to_install(recipe, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("collegium.federated.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(InputError, match="needs Flower"):
        federate(_read(recipe), tmp_path, "simulation")
