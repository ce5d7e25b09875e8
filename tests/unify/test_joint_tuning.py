"""Joint tuning moves only what it may, and the owners' loss moves the routers alone."""

import copy

import numpy as np
import pytest
import torch

from collegium.core.recipe import JointTuningSettings
from collegium.core.router_settings import RouterSettings
from collegium.models import label_exercises
from collegium.models.label_exercises import LabelExercises, Targets
from collegium.models.tasks import class_set
from collegium.unify import joint_tuning
from collegium.unify.joint_tuning import jointly_tuned
from collegium.unify.merge import unified_model
from collegium.unify.proxies import ProxySet

DOMAINS = {"farm": ("a {label}", ["cow", "wheat"]), "port": ("the {label}", ["hull", "wave"])}

TEXTS = ["the old cow", "a pig", "hull mast keel sail near far", "wheat barley oat rye the a", "tide", "one two three"]
OWNERS = np.array([[1, 0], [1, 0], [0, 1], [1, 1], [0, 1], [1, 0]], dtype=np.float32)
SETTINGS = JointTuningSettings(epochs=2, batch_size=4, learning_rate=0.01)


@pytest.fixture(scope="module")
def classes(seed):
    return class_set(seed, DOMAINS, 20.0)


@pytest.fixture(scope="module")
def proxies(seed, classes):
    answers = np.random.default_rng(0).dirichlet(np.ones(4), size=6).astype(np.float32)
    return ProxySet(LabelExercises(seed, TEXTS, Targets(answers, np.ones_like(answers)), classes), OWNERS)


@pytest.fixture
def make_model(seed, make_expert):
    def make(centre=0.1, **options):
        router = RouterSettings(**options)
        layers = [0, 1, 2] if router.decide == "every-layer" else [1, 2]
        experts = {"farm": make_expert(layers, random_seed=1), "port": make_expert(layers, random_seed=2)}
        model = unified_model(seed, experts, layers, router)
        generator = torch.Generator().manual_seed(0)
        for one in model.routers.values():
            one.weight.data = 0.1 * torch.randn(one.weight.shape, generator=generator)
            one.context_weight.data.fill_(router.context_weight)
            one.centre.data.fill_(centre)
        return model

    return make


@pytest.fixture
def tune(proxies):
    def run(model, settings=SETTINGS, random_seed=0):
        return jointly_tuned(model, proxies, settings, random_seed)

    return run


def changed(before, after):
    other = after.state_dict()
    return {name for name, tensor in before.state_dict().items() if not torch.equal(tensor, other[name])}


def without_task_loss(monkeypatch):
    """Joint tuning on the owners' loss alone."""
    monkeypatch.setattr(label_exercises, "matching_loss", lambda embeddings, *_: 0.0 * embeddings.sum())


VARIANTS = [
    {},
    {"fallback": True, "experts_per_token": 2},
    {"decide": "every-layer", "context": "seed", "learn_context_weight": True},
    {"decide": "every-layer", "context": "token", "weighting": "softmax"},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_only_routers_and_owners_experts_move(options, make_model, tune):
    model = make_model(**options)
    moved = changed(model, tune(model))
    assert any(name.endswith(".up_proj.weight") for name in moved)
    assert any(name.endswith(".router.weight") for name in moved)
    for name in moved:
        assert ".router." in name or ".experts." in name, name
        assert not name.endswith((".centre", ".temperature")), name
        assert ".experts.2." not in name, f"the seed's own FFN moved: {name}"
    assert any(name.endswith(".context_weight") for name in moved) == bool(options.get("learn_context_weight"))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_the_owners_loss_alone_never_moves_an_expert(options, make_model, tune, monkeypatch):
    without_task_loss(monkeypatch)
    model = make_model(**options)
    moved = changed(model, tune(model))
    assert any(name.endswith(".router.weight") for name in moved)
    assert all(".router." in name for name in moved)


def test_the_owners_loss_alone_sends_proxies_to_their_owners(make_model, tune, monkeypatch, seed):
    without_task_loss(monkeypatch)
    model = make_model()
    tuned = tune(model, JointTuningSettings(epochs=30, batch_size=6, learning_rate=0.05))

    def sent_home(one):
        routing = one(**seed.tokenise(TEXTS), output_routing=True).routings[1]
        return OWNERS[np.arange(len(TEXTS)), routing.experts[:, 0, 0].numpy()].mean()

    assert sent_home(tuned) == 1.0
    assert sent_home(model) < 1.0


def test_case_16_the_task_loss_alone_moves_the_router_unless_the_weights_are_the_published_ones(make_model, tune):
    settings = JointTuningSettings(epochs=1, batch_size=6, learning_rate=0.01, routing_loss_weight=0.0)
    model = make_model()
    distance = (tune(model, settings).routers[1].weight - model.routers[1].weight).abs().max()
    assert distance == pytest.approx(0.01, rel=0.2)  # one step of AdamW

    published = make_model(weighting="renormalised").requires_grad_(True)
    batch = published(input_ids=torch.tensor([[2, 20, 30, 3]]))
    batch.last_hidden_state[..., 0].sum().backward()
    assert published.routers[1].weight.grad.abs().max() < 1e-6


def test_a_router_without_bias_and_centre_stays_so_that_it_can_be_exported(make_model, tune):
    model = make_model(centre=0.0, decide="every-layer", context="token")
    moved = changed(model, tune(model))
    assert any(name.endswith(".router.weight") for name in moved)
    assert not any(name.endswith(".router.bias") for name in moved)


def test_router_only_leaves_the_experts(make_model, tune):
    model = make_model()
    settings = JointTuningSettings(parameters="router", learning_rate=0.01)
    moved = changed(model, tune(model, settings))
    assert moved == {f"encoder.layer.1.intermediate.router.{name}" for name in ("weight", "bias")}


def test_the_given_model_stays_as_it_is(make_model, tune):
    model = make_model(learn_context_weight=True)
    before = copy.deepcopy(model)
    tuned = tune(model)
    assert not changed(before, model)
    assert not any(parameter.requires_grad for parameter in [*model.parameters(), *tuned.parameters()])
    assert not tuned.training


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_a_learned_context_weight_stays_between_0_and_1(start, make_model, tune):
    settings = JointTuningSettings(epochs=6, batch_size=2, learning_rate=0.3)
    model = make_model(decide="every-layer", context="seed", learn_context_weight=True, context_weight=start)
    values = [router.context_weight.item() for router in tune(model, settings).routers.values()]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert any(value != start for value in values)


def test_tuning_again_gives_the_same_bits(make_model, tune):
    model = make_model()
    first = tune(model)
    assert not changed(first, tune(model))
    assert changed(first, tune(model, random_seed=1))


def test_the_balance_loss_takes_part_only_where_it_has_a_weight(make_model, tune, monkeypatch):
    calls = []
    true_loss = joint_tuning.load_balancing_loss

    def counted(*arguments):
        calls.append(1)
        return true_loss(*arguments)

    monkeypatch.setattr(joint_tuning, "load_balancing_loss", counted)
    model = make_model()
    plain = tune(model)
    assert calls == []
    balanced = tune(model, SETTINGS.model_copy(update={"balance_loss_weight": 5.0}))
    assert calls
    assert changed(plain, balanced)


def test_case_17_a_model_of_one_owner_can_be_tuned(seed, make_expert, proxies):
    model = unified_model(seed, {"farm": make_expert()}, [1, 2], RouterSettings())
    alone = ProxySet(proxies.exercises, np.ones((6, 1), np.float32))
    tuned = jointly_tuned(model, alone, SETTINGS, 0)
    assert all(torch.isfinite(parameter).all() for parameter in tuned.parameters())
