"""Training an expert: only the FFNs of the trained layers change, and a killed run ends as an undisturbed one."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

import collegium.models.fit as fit_module
from collegium.core.errors import RunError
from collegium.core.recipe import TrainingSettings
from collegium.models import label_exercises
from collegium.models.expert_tensors import dense_model, full_expert
from collegium.models.label_exercises import LabelExercises, label_targets
from collegium.owner import training
from collegium.owner.training import train_expert

TEXTS = ["the old cow", "a hen here", "red goat", "wheat far", "barley near", "an oat rye", "one pig", "big rye"] * 2
LABELS = [0, 0, 0, 1, 1, 1, 0, 1] * 2


def settings(**changes: object) -> TrainingSettings:
    values = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-2, "warmup_steps": 0, "rank": 4}
    return TrainingSettings.model_validate(values | changes)


@pytest.fixture
def train(seed, charter):
    classes = charter.classes(seed)
    exercises = LabelExercises(seed, TEXTS, label_targets(LABELS, range(4), classes), classes)

    def run(own: TrainingSettings, layers=(1, 2), checkpoints=None, random_seed=0):
        return train_expert(seed, exercises, own, list(layers), random_seed, checkpoints)

    return run


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("parameters", ["full", "lora"])
@pytest.mark.parametrize("layers", [[1, 2], [2], [0, 1, 2]])
def test_only_the_ffns_of_the_trained_layers_change_and_the_seed_stays_as_it_is(seed, train, parameters, layers):
    before = {name: tensor.clone() for name, tensor in seed.model.state_dict().items()}
    expert = train(settings(parameters=parameters), layers)
    assert same(before, seed.model.state_dict())
    tuned = expert.encoder.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], tuned[name])}
    kinds = ["weight", "bias"] if parameters == "full" else ["weight"]
    assert changed == {
        f"encoder.layer.{layer}.{module}.dense.{kind}"
        for layer in layers
        for module in ("intermediate", "output")
        for kind in kinds
    }
    assert not any(parameter.requires_grad for parameter in expert.encoder.model.parameters())


@pytest.mark.parametrize("size", [2, 3, 16])
def test_parts_of_a_batch_add_up_to_the_batch(train, monkeypatch, size):
    """Adam turns a wrong share of the loss into steps that differ by far more than rounding."""
    own = settings(batch_size=8, epochs=1)
    monkeypatch.setattr(training, "PART", size)
    parts = train(own).tensors
    monkeypatch.setattr(training, "PART", 8)
    for name, tensor in train(own).tensors.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_texts_of_similar_length_are_computed_together(monkeypatch):
    monkeypatch.setattr(training, "PART", 2)
    texts = ["a long text of words", "a", "a text", "long texts of many words", "ab"]
    assert training._of_similar_length(texts, [0, 1, 2, 3, 4]) == [[1, 4], [2, 0], [3]]
    assert training._of_similar_length(texts, [3, 1]) == [[3, 1]]


def test_a_full_experts_tensors_are_those_of_its_encoder(seed, train):
    expert = train(settings())
    assert set(expert.tensors) == {
        f"layers.{layer}.{matrix}.{kind}"
        for layer in (1, 2)
        for matrix in ("up_proj", "down_proj")
        for kind in ("weight", "bias")
    }
    assert all(tensor.dtype == torch.float32 for tensor in expert.tensors.values())
    assert same(dense_model(seed, expert.tensors).model.state_dict(), expert.encoder.model.state_dict())


def test_lora_factors_have_their_shapes_and_merge_to_w_plus_scale_b_a(seed, train):
    own = settings(parameters="lora", lora_alpha=6.0)
    expert = train(own)
    shapes = {name: tuple(tensor.shape) for name, tensor in expert.tensors.items()}
    assert shapes == {
        f"layers.{layer}.{matrix}.{factor}": shape
        for layer in (1, 2)
        for matrix, factor, shape in [
            ("up_proj", "lora_A", (4, 32)),
            ("up_proj", "lora_B", (48, 4)),
            ("down_proj", "lora_A", (4, 48)),
            ("down_proj", "lora_B", (32, 4)),
        ]
    }
    merged = full_expert(seed, expert.tensors, own)
    before, tuned = seed.model.state_dict(), expert.encoder.model.state_dict()
    for layer in (1, 2):
        for matrix, module in (("up_proj", "intermediate"), ("down_proj", "output")):
            name = f"encoder.layer.{layer}.{module}.dense.weight"
            factors = [expert.tensors[f"layers.{layer}.{matrix}.{factor}"] for factor in ("lora_B", "lora_A")]
            expected = before[name] + 6.0 / 4 * factors[0] @ factors[1]
            assert torch.allclose(merged[f"layers.{layer}.{matrix}.weight"], expected, atol=1e-7)
            assert torch.allclose(tuned[name], expected, atol=1e-6)
            assert torch.equal(merged[f"layers.{layer}.{matrix}.bias"], before[name.replace("weight", "bias")])


@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_case_24_the_same_seed_gives_the_same_expert_and_another_seed_another(train, parameters):
    first = train(settings(parameters=parameters)).tensors
    torch.manual_seed(99)  # what ran before must not matter
    assert same(train(settings(parameters=parameters)).tensors, first)
    assert not same(train(settings(parameters=parameters), random_seed=1).tensors, first)


def test_training_learns(seed, charter, train):
    classes = charter.classes(seed).embeddings[:2]

    def accuracy(encoder):
        with torch.no_grad():
            answers = (encoder.embed(encoder.tokenise(TEXTS)) @ classes.T).argmax(dim=1)
        return float((answers == torch.tensor(LABELS)).float().mean())

    assert accuracy(train(settings(epochs=20)).encoder) == 1.0 > accuracy(seed)


@pytest.mark.parametrize("rate", [1e20, 1e38])
def test_a_training_that_diverges_is_a_clear_error(train, rate):
    with pytest.raises(RunError, match=r"infinite or not a number|infinite") as raised:
        train(settings(learning_rate=rate, epochs=3, weight_decay=0.0))
    assert "learning" in str(raised.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_loss_is_a_clear_error(train, monkeypatch, value):
    loss = label_exercises.matching_loss
    monkeypatch.setattr(label_exercises, "matching_loss", lambda *arguments: loss(*arguments) * value)
    with pytest.raises(RunError, match="loss became infinite or not a number"):
        train(settings())


def test_a_change_outside_the_ffns_is_noticed(train, monkeypatch):
    import collegium.owner.training as training_module

    def unfaithful_fit(model, *_):
        with torch.no_grad():
            model.encoder.layer[0].attention.self.query.weight[0, 0] += 1

    monkeypatch.setattr(training_module, "fit", unfaithful_fit)
    with pytest.raises(RunError, match=r"attention\.self\.query\.weight changed"):
        train(settings())


class _Stop(TrainerCallback):
    def __init__(self, at: int):
        self.at = at

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.at:
            raise KeyboardInterrupt


def interrupt(monkeypatch, at: int):
    """Every Trainer made from now on is interrupted after this step."""
    trainer = fit_module._Trainer

    class Interrupted(trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.add_callback(_Stop(at))

    monkeypatch.setattr(fit_module, "_Trainer", Interrupted)


@pytest.mark.parametrize(("parameters", "at"), [("full", 1), ("full", 3), ("full", 5), ("lora", 3)])
def test_promise_5_an_interrupted_training_ends_as_an_undisturbed_one(train, tmp_path, monkeypatch, parameters, at):
    """Two steps an epoch: interrupted before the first checkpoint, after the first, after the second."""
    own = settings(parameters=parameters, epochs=3)
    undisturbed = train(own).tensors
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch, at)
        train(own, checkpoints=tmp_path / "checkpoints")
    resumed = []
    find = fit_module._last_complete
    monkeypatch.setattr(fit_module, "_last_complete", lambda folder: resumed.append(find(folder)) or resumed[0])
    assert same(train(own, checkpoints=tmp_path / "checkpoints").tensors, undisturbed)
    expected = {1: None, 3: "checkpoint-2", 5: "checkpoint-4"}[at]
    assert (resumed[0] and Path(resumed[0]).name) == expected


def test_a_training_that_had_already_ended_is_not_repeated(train, tmp_path, monkeypatch):
    first = train(settings(), checkpoints=tmp_path / "checkpoints").tensors
    interrupt(monkeypatch, at=1)
    assert same(train(settings(), checkpoints=tmp_path / "checkpoints").tensors, first)


def test_half_a_checkpoint_is_not_used(train, tmp_path, monkeypatch):
    own = settings(epochs=3)
    undisturbed = train(own).tensors
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch, 5)
        train(own, checkpoints=tmp_path)
    checkpoint = tmp_path / "checkpoint-4"
    (checkpoint / fit_module.COMPLETE).unlink()
    os.truncate(checkpoint / "optimizer.pt", 100)
    assert same(train(own, checkpoints=tmp_path).tensors, undisturbed)


def test_padding_and_batch_mates_do_not_enter_the_loss(seed, charter, train, monkeypatch):
    """One epoch of one batch of equal texts gives the gradient of one text: its expert is the same to rounding."""
    classes = charter.classes(seed)
    own = settings(epochs=1, batch_size=8, learning_rate=1e-3)

    def one(texts):
        exercises = LabelExercises(seed, texts, label_targets([0] * len(texts), range(4), classes), classes)
        return train_expert(seed, exercises, own, [1, 2], 0).tensors

    alone, many = one(["the old cow"]), one(["the old cow"] * 8)
    for name in alone:
        assert np.abs(alone[name].numpy() - many[name].numpy()).max() < 1e-4
