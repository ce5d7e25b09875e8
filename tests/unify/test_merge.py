"""Merging copies tensors: every byte of a unified model is the seed's or an expert's."""

import copy

import numpy as np
import pytest
import torch

from collegium.core.recipe import TrainingSettings
from collegium.core.router_settings import RouterSettings
from collegium.models.encoder import embed_texts
from collegium.models.expert_tensors import dense_model, ffn_tensors, full_expert
from collegium.models.label_exercises import LabelExercises, label_targets
from collegium.models.tasks import class_set
from collegium.owner.training import train_expert
from collegium.unify.baselines.soup import soup
from collegium.unify.merge import unified_model

TEXTS = ["the old cow", "a", "hull mast keel sail near far", "wheat barley oat rye the a"]
PATHS = {"up_proj": "intermediate.dense", "down_proj": "output.dense"}


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("options", [{}, {"fallback": True}, {"decide": "every-layer", "context": "seed"}], ids=str)
def test_every_tensor_is_an_experts_or_the_seeds_byte_for_byte(options, seed, make_expert):
    router = RouterSettings(**options)
    layers = [0, 1, 2] if router.decide == "every-layer" else [1, 2]
    experts = {"farm": make_expert(layers, random_seed=1), "port": make_expert(layers, random_seed=2)}
    state = unified_model(seed, experts, layers, router).state_dict()
    members = [*experts.values()] + ([ffn_tensors(seed, layers)] if options else [])
    taken = {name for name in state if ".router." in name}
    for layer in layers:
        for index, tensors in enumerate(members):
            for matrix in PATHS:
                for kind in ("weight", "bias"):
                    name = f"encoder.layer.{layer}.intermediate.experts.{index}.{matrix}.{kind}"
                    assert bits(state[name]) == bits(tensors[f"layers.{layer}.{matrix}.{kind}"]), name
                    taken.add(name)
    rest = dict(seed.model.state_dict())
    for layer in layers:
        for path in PATHS.values():
            for kind in ("weight", "bias"):
                del rest[f"encoder.layer.{layer}.{path}.{kind}"]
    assert set(state) - taken == set(rest)
    assert all(bits(state[name]) == bits(tensor) for name, tensor in rest.items())


def test_the_order_of_the_experts_is_the_order_of_their_names(seed, make_expert):
    experts = {"port": make_expert(random_seed=2), "farm": make_expert(random_seed=1)}
    model = unified_model(seed, experts, [1, 2], RouterSettings())
    assert model.config.expert_names == ["port", "farm"]
    first = model.encoder.layer[1].intermediate.experts[0].up_proj.weight
    assert torch.equal(first, experts["port"]["layers.1.up_proj.weight"])


def test_the_seeds_configuration_is_carried_over(seed, make_expert):
    model = unified_model(seed, {"farm": make_expert()}, [1, 2], RouterSettings(experts_per_token=2, fallback=True))
    own = seed.model.config
    for name in ("hidden_act", "vocab_size", "layer_norm_eps", "max_position_embeddings", "pad_token_id"):
        assert getattr(model.config, name) == getattr(own, name)
    assert model.config.model_type == "collegium-bert"
    assert (model.config.experts_per_token, model.config.fallback) == (2, True)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_merging_leaves_the_seed_and_the_experts_alone(seed, make_expert):
    before, expert = copy.deepcopy(seed.model.state_dict()), make_expert()
    tensors = {name: tensor.clone() for name, tensor in expert.items()}
    model = unified_model(seed, {"farm": expert}, [1, 2], RouterSettings())
    dense = dense_model(seed, expert).model
    for parameter in [*model.parameters(), *dense.parameters()]:
        parameter.data.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in seed.model.state_dict().items())
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in expert.items())


def test_a_missing_tensor_is_never_filled_in(seed, make_expert):
    expert = make_expert()
    del expert["layers.2.down_proj.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*layer\.2\.intermediate\.experts\.0\.down_proj\.bias"):
        unified_model(seed, {"farm": expert}, [1, 2], RouterSettings())


def test_a_dense_model_is_the_seed_with_other_ffns(seed, make_expert):
    expert = make_expert()
    state, own = dense_model(seed, expert).model.state_dict(), seed.model.state_dict()
    changed = {name for name in own if not torch.equal(own[name], state[name])}
    assert changed == {f"encoder.layer.{i}.{path}.{kind}" for i in (1, 2) for path in PATHS.values()
                       for kind in ("weight", "bias")}  # fmt: skip
    assert torch.equal(state["encoder.layer.2.output.dense.weight"], expert["layers.2.down_proj.weight"])


def test_the_dense_model_of_the_seeds_own_tensors_is_the_seed(seed):
    dense = dense_model(seed, ffn_tensors(seed, [0, 1, 2]))
    np.testing.assert_array_equal(embed_texts(dense, TEXTS), embed_texts(seed, TEXTS))


def test_one_expert_unified_is_its_dense_model(seed, make_expert):
    expert = make_expert()
    model = unified_model(seed, {"farm": expert}, [1, 2], RouterSettings())
    unified = dense_model(seed, expert)
    expected = embed_texts(unified, TEXTS)
    object.__setattr__(unified, "model", model)
    np.testing.assert_array_equal(embed_texts(unified, TEXTS), expected)


def test_soup_is_the_average():
    tensors = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 6.0])}, {"w": torch.tensor([5.0, 1.0])}]
    assert torch.equal(soup(tensors)["w"], torch.tensor([3.0, 3.0]))
    assert torch.equal(soup(tensors[:1])["w"], tensors[0]["w"])
    assert torch.equal(tensors[0]["w"], torch.tensor([1.0, 2.0]))


def test_a_full_expert_is_taken_as_it_is(seed, make_expert):
    expert = make_expert()
    full = full_expert(seed, expert, TrainingSettings())
    assert full.keys() == expert.keys()
    assert all(torch.equal(full[name], expert[name]) for name in expert)


def test_lora_factors_are_merged_with_their_scale(seed):
    generator = torch.Generator().manual_seed(0)
    factors = {}
    for layer in (1, 2):
        for matrix, (rows, columns) in {"up_proj": (48, 32), "down_proj": (32, 48)}.items():
            factors[f"layers.{layer}.{matrix}.lora_A"] = torch.randn(4, columns, generator=generator)
            factors[f"layers.{layer}.{matrix}.lora_B"] = torch.randn(rows, 4, generator=generator)
    full = full_expert(seed, factors, TrainingSettings(parameters="lora", rank=4, lora_alpha=10.0))
    own = ffn_tensors(seed, [1, 2])
    assert full.keys() == own.keys()
    for name in own:
        if name.endswith(".bias"):
            assert torch.equal(full[name], own[name])
        else:
            matrix = name.removesuffix(".weight")
            update = 2.5 * factors[f"{matrix}.lora_B"] @ factors[f"{matrix}.lora_A"]
            torch.testing.assert_close(full[name], own[name] + update)


def test_a_merged_lora_expert_is_the_model_that_was_trained(seed):
    pytest.importorskip("peft")
    classes = class_set(seed, {"farm": ("a {label}", ["cow", "wheat"])}, 20.0)
    exercises = LabelExercises(seed, TEXTS, label_targets([0, 1, 1, 0], [0, 1], classes), classes)
    settings = TrainingSettings(
        parameters="lora", rank=2, lora_alpha=6.0, epochs=3, batch_size=2, learning_rate=0.05, warmup_steps=0
    )
    expert = train_expert(seed, exercises, settings, [1, 2], random_seed=0)
    merged = dense_model(seed, full_expert(seed, expert.tensors, settings))
    np.testing.assert_allclose(embed_texts(merged, TEXTS), embed_texts(expert.encoder, TEXTS), atol=1e-5)
    assert abs(embed_texts(merged, TEXTS) - embed_texts(seed, TEXTS)).max() > 0.01
