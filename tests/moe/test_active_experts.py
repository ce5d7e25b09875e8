"""Experts switched off at run time: the rest answer as if the others had never been there."""

import copy

import pytest
import torch

from collegium.moe.architectures import architecture_of, ffn_parameter_names
from families import answer, moe_layers, tiny_inputs, tiny_seed, tiny_unified

LENGTHS = [3, 9, 6, 9]
CASES = [
    ("bert", {"decide": "once", "context": "sequence"}),
    ("bert", {"decide": "every-layer", "context": "token", "weighting": "softmax"}),
    ("roberta", {"decide": "every-layer", "context": "seed"}),
    ("vit", {"decide": "every-layer", "context": "sequence"}),
    ("llama", {"decide": "every-layer", "context": "causal"}),
    ("gemma3_text", {"decide": "once", "context": "causal", "warmup_tokens": 2}),
    ("olmo2", {"decide": "every-layer", "context": "seed"}),
]


def run(model, family):
    with torch.no_grad():
        return model(**tiny_inputs(family, LENGTHS), output_routing=True)


def real(values, family):
    mask = tiny_inputs(family, LENGTHS).get("attention_mask")
    return values if mask is None else values[mask.bool()]


def without(model, seed, index):
    """A unified model that never had expert `index`, with equal rows of the routers."""
    options = {
        name: getattr(model.config, name)
        for name in ("decide", "context", "weighting", "warmup_tokens", "experts_per_token", "fallback")
    }
    other = tiny_unified(seed, num_owners=len(model.config.expert_names) - 1, **options)
    for mine, theirs in zip(moe_layers(model), moe_layers(other)):
        kept = [expert for place, expert in enumerate(mine.experts) if place != index]
        for expert, copied in zip(kept, theirs.experts, strict=True):
            copied.load_state_dict(expert.state_dict())
        if mine.router is not None and theirs.router is not None:
            state = mine.router.state_dict()
            rows = [row for row in range(len(state["weight"])) if row != index]
            theirs.router.load_state_dict({**state, "weight": state["weight"][rows], "bias": state["bias"][rows]})
    return other


@pytest.mark.parametrize(("family", "options"), CASES[:5] + CASES[6:], ids=str)
def test_with_one_active_expert_the_model_is_the_seed_with_that_expert(family, options):
    seed = tiny_seed(family)
    model = tiny_unified(seed, noise=0.05, **options)
    dense = copy.deepcopy(seed)
    state = dense.state_dict()
    for layer in moe_layers(model):
        expert = layer.experts[1].state_dict()
        for neutral, own in ffn_parameter_names(architecture_of(family), seed, layer.layer).items():
            state[own].copy_(expert[neutral.split(".", 2)[2]])
    model.set_active_experts(["owner-1"])
    inputs = tiny_inputs(family, LENGTHS)
    if family in ("bert", "roberta"):  # a seed counts positions through the padding's side
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0) + 2 * (family == "roberta")
    with torch.no_grad():
        expected = dense(**inputs)
    torch.testing.assert_close(real(answer(run(model, family)), family), real(answer(expected), family))


@pytest.mark.parametrize(("family", "options"), CASES, ids=str)
@pytest.mark.parametrize("experts_per_token", [1, 2])
@pytest.mark.parametrize("fallback", [False, True])
def test_a_deactivated_expert_might_as_well_be_missing(family, options, experts_per_token, fallback):
    seed = tiny_seed(family)
    model = tiny_unified(seed, noise=0.05, **options, experts_per_token=experts_per_token, fallback=fallback)
    everybody = run(model, family)
    assert any((routing.experts == 1).any() for routing in everybody.routings.values())
    model.set_active_experts(["owner-2", "owner-0", *(["seed"] if fallback else [])])
    some, expected = run(model, family), run(without(model, seed, 1), family)
    torch.testing.assert_close(real(answer(some), family), real(answer(expected), family))
    assert not torch.allclose(answer(some), answer(everybody))
    for layer, routing in some.routings.items():
        rows = [row for row in range(routing.logits.shape[-1]) if row != 1]
        assert (routing.logits[..., 1] == -torch.inf).all()
        torch.testing.assert_close(routing.logits[..., rows], expected.routings[layer].logits)
        assert not (routing.experts == 1).any()


def test_none_makes_all_of_them_active_again_bit_for_bit():
    model = tiny_unified(tiny_seed("bert"), noise=0.05)
    before = run(model, "bert").last_hidden_state
    model.set_active_experts(["owner-0"])
    model.set_active_experts(None)
    assert torch.equal(run(model, "bert").last_hidden_state, before)


def test_the_choice_is_never_saved(tmp_path):
    model = tiny_unified(tiny_seed("bert"), noise=0.05)
    before, tensors = run(model, "bert").last_hidden_state, set(model.state_dict())
    model.set_active_experts(["owner-0"])
    assert set(model.state_dict()) == tensors
    model.save_pretrained(tmp_path)
    assert "active" not in (tmp_path / "config.json").read_text()
    again = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(run(again, "bert").last_hidden_state, before)
    again.set_active_experts(["owner-0"])
    assert not torch.allclose(run(again, "bert").last_hidden_state, before, atol=1e-3)


def test_a_cache_that_was_filled_while_some_were_inactive_serves_all():
    model = tiny_unified(tiny_seed("llama"), noise=0.05, decide="every-layer")
    ids = tiny_inputs("llama", [9])["input_ids"]
    with torch.no_grad():
        whole = model(input_ids=ids, output_routing=True)
        model.set_active_experts(["owner-2"])
        start = model(input_ids=ids[:, :5], use_cache=True)
        model.set_active_experts(None)
        rest = model(input_ids=ids[:, 5:], cache=start.cache, output_routing=True)
    # What the first layer is given does not depend on who was active: its context is as if nobody had been away.
    torch.testing.assert_close(rest.routings[0].logits, whole.routings[0].logits[:, 5:])
    assert rest.logits.isfinite().all()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["owner-0", "owner-9"], "no expert is named owner-9; the experts are owner-0, owner-1, owner-2"),
        (["owner-0", "owner-1", "seed"], "no expert is named seed"),
        (["owner-0"], "1 active experts, but each token takes 2"),
        ([], "0 active experts"),
        (["owner-1", "owner-1"], "1 active experts"),
    ],
)
def test_a_wrong_choice_is_refused_and_changes_nothing(names, words):
    model = tiny_unified(tiny_seed("bert"), noise=0.05, experts_per_token=2)
    before = run(model, "bert").last_hidden_state
    with pytest.raises(ValueError, match=words):
        model.set_active_experts(names)
    assert torch.equal(run(model, "bert").last_hidden_state, before)
