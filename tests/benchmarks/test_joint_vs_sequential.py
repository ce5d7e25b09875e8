"""Gate and experts, together or one after the other: the set-up is what its text says, the extremes are as known."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from collegium.benchmarks import joint_vs_sequential as module
from collegium.benchmarks.joint_vs_sequential import EXPERTS, METHODS, Size, _World, train
from collegium.cli.main import app
from collegium.core.errors import InputError

SMALL = Size(dimensions=(4, 8), steps=100, seeds=2)


@pytest.fixture
def world():
    torch.manual_seed(0)
    return _World(seeds=3, dimension=8)


def test_the_right_gate_and_experts_answer_everything_right(world):
    test = world.draw(500)
    assert module._top_1_loss(world.gate, world.experts, test) == pytest.approx([0, 0, 0], abs=1e-9)
    assert module._top_1_loss(world.gate, torch.zeros_like(world.experts), test) == pytest.approx([1, 1, 1])


def test_clusters_are_of_one_size_and_their_directions_orthonormal(world):
    assert torch.allclose(world.gate @ world.gate.transpose(1, 2), torch.eye(EXPERTS).expand(3, -1, -1), atol=1e-5)
    inputs, _ = world.draw(20_000)
    cluster = (inputs @ world.gate.transpose(1, 2)).argmax(dim=2)
    for seed in range(3):
        assert np.bincount(cluster[seed], minlength=EXPERTS) / 20_000 == pytest.approx(
            [1 / EXPERTS] * EXPERTS, abs=0.02
        )


def test_the_loss_of_the_mixture_is_that_of_its_formula(world):
    gate, experts = torch.randn(3, EXPERTS, 8), torch.randn(3, EXPERTS, 8)
    inputs, answers = world.draw(5)
    expected = 0.0
    for seed in range(3):
        for x, y in zip(inputs[seed], answers[seed]):
            shares = torch.softmax(gate[seed] @ x, dim=0)
            density = torch.exp(-((y - experts[seed] @ x) ** 2) / (2 * module.SIGMA**2))
            expected -= math.log(float((shares * density).sum())) / 5
    assert float(module._mixture(gate, experts, inputs, answers)) == pytest.approx(expected, rel=1e-4)


def test_a_chosen_experts_weight_is_one_and_lets_a_gradient_through(world):
    gate = torch.randn(3, EXPERTS, 8, requires_grad=True)
    inputs, answers = world.draw(50)
    loss = module._chosen(gate, world.experts, inputs, answers)
    best = (inputs @ gate.transpose(1, 2)).argmax(dim=2, keepdim=True)
    errors = answers - (inputs @ world.experts.transpose(1, 2)).gather(2, best).squeeze(2)
    assert float(loss.detach()) == pytest.approx(float((errors.detach() ** 2).mean(dim=1).sum()), rel=1e-5)
    loss.backward()
    assert gate.grad.abs().max() > 0


@pytest.mark.parametrize("method", METHODS)
def test_what_is_fixed_in_a_phase_does_not_change(method):
    gate, experts = torch.zeros(1, EXPERTS, 4), torch.ones(1, EXPERTS, 4)
    phases = module._phases(method, gate, experts, torch.eye(EXPERTS).unsqueeze(0), 100)
    assert sum(steps for _, _, steps in phases) == 100
    trained = [[one is gate for one in own] for own, _, _ in phases]
    assert (
        trained
        == {
            "joint": [[True, False]],
            "joint, top-1": [[True, False]],
            "experts first": [[False], [True]],
            "gate first": [[True], [False]],
            "experts first, clusters known": [[False], [True]],
            "true gate": [[False]],
        }[method]
    )


def test_experts_under_the_true_gate_learn_the_answers():
    run = train("true gate", 8, Size(dimensions=(8,), steps=500, seeds=2))
    assert max(run.losses[500]) < 0.01
    assert min(run.losses[0]) > 0.8
    assert len(run.losses) == module.MEASURED + 1


def test_experts_first_stay_far_from_zero_where_joint_training_comes_close():
    size = Size(dimensions=(16,), steps=500, seeds=3)
    joint, first, known = (
        np.mean(train(method, 16, size).losses[500])
        for method in ("joint", "experts first", "experts first, clusters known")
    )
    assert first > 0.4
    assert joint < 0.25 * first
    assert known < 0.25 * first


def test_the_command_writes_table_records_and_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "QUICK", SMALL)
    found = CliRunner().invoke(app, ["bench", "joint-vs-sequential", "--quick", "--out", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert "| experts first |" in found.output
    assert {path.name for path in tmp_path.iterdir()} == {"table.md", "rows.jsonl", "loss.png", "loss.svg"}
    records = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(record["method"], record["case"]["dimension"]) for record in records] == [
        (method, dimension) for method in METHODS for dimension in (4, 8)
    ]
    assert all(len(record["metrics"]["relative_loss"]) == 2 for record in records)


def test_options_of_suites_are_refused(tmp_path):
    found = CliRunner().invoke(app, ["bench", "joint-vs-sequential", "--seed", "1"])
    assert isinstance(found.exception, InputError)
    found = CliRunner().invoke(app, ["bench", "quick", "--quick"])
    assert isinstance(found.exception, InputError)
