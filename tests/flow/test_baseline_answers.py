"""Every baseline is measured beside the unified model, on the same test examples."""

import json
from typing import get_args

import pytest

from collegium.core.recipe import Baseline
from collegium.flow.simulate import simulate


@pytest.fixture(scope="module")
def accuracy(make_recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    training = {"steps": 60, "learning_rate": 5e-3, "batch_size": 16, "warmup_steps": 0}
    simulate(make_recipe(evaluation={"baselines": list(get_args(Baseline))}, training=training), folder)
    return json.loads((folder / "summary.json").read_bytes())["accuracy"]


def test_all_baselines_are_in_the_summary_behind_our_own_methods(accuracy):
    assert list(accuracy)[-len(get_args(Baseline)) :] == list(get_args(Baseline))
    for name in get_args(Baseline):
        assert set(accuracy[name]["union"]) == {"farm", "port", "mean"}


def test_what_sees_all_private_data_learns_both_domains(accuracy):
    assert accuracy["pooled"]["union"]["mean"] > accuracy["seed"]["union"]["mean"] + 0.1
    assert accuracy["btx"]["union"]["mean"] > accuracy["seed"]["union"]["mean"] + 0.1


def test_two_of_two_experts_are_all_experts(accuracy):
    assert accuracy["btm-top"] == accuracy["btm-posterior"]
