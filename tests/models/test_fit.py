"""The training loop: resumable to the bit, silent, and loud when the loss breaks (promise 5)."""

import shutil

import pytest
import torch
from torch import nn

from collegium.core.errors import RunError
from collegium.core.recipe import JointTuningSettings, TrainingSettings
from collegium.models.fit import COMPLETE, fit

EXAMPLES = 20
SETTINGS = TrainingSettings(epochs=4, batch_size=6, learning_rate=0.05, warmup_steps=2)
STEPS = 4 * 4


class Interrupted(BaseException):
    """Stands for a kill: nothing catches it."""


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 1))


def collate(rows):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, 3, generator=generator)[rows]
    return {"inputs": inputs, "targets": inputs.sum(dim=1, keepdim=True).sin()}


def squared_error(module, batch):
    return (module(batch["inputs"]) - batch["targets"]).square().mean()


def run(checkpoints=None, loss=squared_error, model=None, settings=SETTINGS, random_seed=0):
    model = model or make_model()
    fit(model, EXAMPLES, collate, loss, settings, random_seed, "test", checkpoints)
    return [parameter.detach().clone() for parameter in model.parameters()]


def interrupted_after(steps, checkpoints, settings=SETTINGS):
    done = 0

    def loss(module, batch):
        nonlocal done
        if done == steps:
            raise Interrupted
        done += 1
        return squared_error(module, batch)

    with pytest.raises(Interrupted):
        run(checkpoints, loss, settings=settings)


def counting(calls):
    def loss(module, batch):
        calls.append(1)
        return squared_error(module, batch)

    return loss


def same(ours, others):
    return all(torch.equal(one, other) for one, other in zip(ours, others, strict=True))


def test_training_lowers_the_loss_and_repeats_bit_for_bit():
    before, model = make_model(), make_model()
    first = run(model=model)
    everything = collate(list(range(EXAMPLES)))
    assert squared_error(model, everything) < 0.5 * squared_error(before.eval(), everything)
    assert same(first, run())
    assert not same(first, run(random_seed=1))


@pytest.mark.parametrize("steps", [2, 5, 9, 15])
def test_an_interrupted_run_ends_with_the_weights_of_an_undisturbed_one(steps, tmp_path):
    undisturbed = run()
    interrupted_after(steps, tmp_path)
    calls = []
    assert same(run(tmp_path, counting(calls)), undisturbed)
    assert len(calls) == STEPS - steps // 4 * 4  # whole epochs are not repeated


@pytest.mark.parametrize("steps", [1, 5, 29])
def test_with_fixed_steps_a_tenth_of_them_is_the_most_that_is_repeated(steps, tmp_path):
    settings = TrainingSettings(steps=30, batch_size=20, learning_rate=0.05, warmup_steps=2)  # every step is an epoch
    undisturbed = run(settings=settings)
    interrupted_after(steps, tmp_path, settings)
    calls = []
    assert same(run(tmp_path, counting(calls), settings=settings), undisturbed)
    assert len(calls) == 30 - steps // 3 * 3


def test_a_long_epoch_is_not_lost(tmp_path):
    settings = TrainingSettings(steps=20, batch_size=1, learning_rate=0.05, warmup_steps=2)  # all within one epoch
    undisturbed = run(settings=settings)
    interrupted_after(15, tmp_path, settings)
    calls = []
    assert same(run(tmp_path, counting(calls), settings=settings), undisturbed)
    assert len(calls) == 20 - 14


def test_a_finished_run_is_not_repeated(tmp_path):
    first, calls = run(tmp_path), []
    assert same(run(tmp_path, counting(calls)), first)
    assert calls == []


def test_a_half_written_checkpoint_is_ignored_and_removed(tmp_path):
    undisturbed = run()
    interrupted_after(9, tmp_path)
    (whole,) = tmp_path.glob("checkpoint-*")
    assert whole.name == "checkpoint-8"
    assert (whole / COMPLETE).is_file()
    half = shutil.copytree(whole, tmp_path / "checkpoint-12")
    (half / COMPLETE).unlink()
    (half / "model.safetensors").write_bytes(b"half a fi")
    interrupted_after(0, tmp_path)  # the next run removes it before anything else
    assert list(tmp_path.glob("checkpoint-*")) == [whole]
    calls = []
    assert same(run(tmp_path, counting(calls)), undisturbed)
    assert len(calls) == STEPS - 8


def test_a_run_whose_only_checkpoint_is_half_written_starts_again(tmp_path):
    interrupted_after(5, tmp_path)
    (whole,) = tmp_path.glob("checkpoint-*")
    (whole / COMPLETE).unlink()
    calls = []
    assert same(run(tmp_path, counting(calls)), run())
    assert len(calls) == STEPS


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_loss_is_an_error(value):
    with pytest.raises(RunError, match=r"infinite or not a number[\s\S]*learning_rate"):
        run(loss=lambda module, batch: squared_error(module, batch) * value)


def test_nothing_is_printed(capfd, tmp_path):
    run(tmp_path)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err == ""


def test_only_parameters_with_a_gradient_move():
    model = make_model()
    model[0].requires_grad_(False)
    before = make_model()
    run(model=model)
    assert torch.equal(model[0].weight, before[0].weight)
    assert not torch.equal(model[3].weight, before[3].weight)


def test_the_model_comes_back_in_evaluation_mode_without_dropout():
    model = make_model()
    run(model=model, settings=JointTuningSettings(learning_rate=0.05))
    assert not model.training
    assert model[1].p == 0.0


@pytest.mark.parametrize("examples", [5, 20, 33])
def test_with_fixed_steps_the_training_is_as_long_whatever_the_number_of_examples(examples):
    calls: list[int] = []

    def few(rows):
        return collate([row % EXAMPLES for row in rows])

    settings = SETTINGS.model_copy(update={"steps": 7})
    fit(make_model(), examples, few, counting(calls), settings, 0, "test")
    assert len(calls) == 7
