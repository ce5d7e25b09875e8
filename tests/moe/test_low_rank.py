"""Low-rank experts compute what full ones of W + B A compute, and are kept as factors everywhere."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM

from collegium.moe.architectures import ARCHITECTURES
from collegium.moe.experts import FeedForward, dispatch
from collegium.moe.low_rank import LowRankExpert
from collegium.moe.modeling import UNIFIED_MODELS, unified_config
from families import (
    EVERY_CLASS,
    FAMILIES,
    answer,
    materialised,
    moe_layers,
    tiny_inputs,
    tiny_seed,
    tiny_unified,
)

LENGTHS = [3, 9, 6, 9, 4, 8, 5]
DIM, INNER = 6, 10
MIXED = [2, None, 5]  # ranks; None = full


def own_context(family):
    return "causal" if ARCHITECTURES[family].kind == "decoder" else "sequence"


def unified(family, ranks=MIXED, class_name=None, **options):
    seed = tiny_seed(family, class_name)
    options = {"noise": 0.1, "steepness": 3.0, "decide": "every-layer", "context": own_context(family), **options}
    return seed, tiny_unified(seed, num_owners=len(ranks), expert_ranks=ranks, **options)


def case(ranks, rows, k, gated, dtype=torch.float64):
    """Experts, their base, and tokens for them; the last expert of rank 0 is the base itself."""
    torch.manual_seed(rows + k)
    base = FeedForward(DIM, INNER, "gelu", gated=gated, bias=not gated)
    shapes = dict.fromkeys(base.entries, (INNER, DIM)) | {"down_proj": (DIM, INNER)}
    experts = nn.ModuleList(
        FeedForward(DIM, INNER, "gelu", gated=gated, bias=not gated) if rank is None else LowRankExpert(shapes, rank)
        for rank in ranks
    )
    for name, parameter in experts.named_parameters():
        if name.endswith("_B"):
            nn.init.normal_(parameter)
    order = torch.rand(rows, len(ranks)).argsort(dim=1)
    hidden, weights = torch.randn(rows, DIM), torch.rand(rows, k)
    return hidden.to(dtype), order[:, :k], weights, experts.to(dtype), base.to(dtype)


def by_formula(hidden, chosen, weights, experts, base):
    """Token by token, with matrices W + B A."""

    def output(expert, token):
        full = expert
        if isinstance(expert, LowRankExpert):
            full = copy.deepcopy(base)
            for matrix in (*base.entries, "down_proj") if expert.rank else ():
                layer = full.get_submodule(matrix)
                weight = layer.weight + expert.get_parameter(f"{matrix}_B") @ expert.get_parameter(f"{matrix}_A")
                del layer.weight
                layer.weight = weight  # no parameter: gradients reach the factors
        return full(token)

    rows = [
        sum(weights[row, k] * output(experts[int(expert)], token) for k, expert in enumerate(chosen[row]))
        for row, token in enumerate(hidden)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("ranks", [[2, 2, 2], [1, 3, 2, 0], [2, None, 4, 0], [None, None]], ids=str)
@pytest.mark.parametrize(("rows", "k"), [(1, 1), (30, 1), (30, 2), (0, 2)])
def test_the_shared_base_gives_what_whole_matrices_give(rows, k, ranks, gated):
    hidden, chosen, weights, experts, base = case(ranks, rows, k, gated)
    found = dispatch(hidden, chosen, weights, experts, base)
    expected = by_formula(hidden, chosen, weights, experts, base) if rows else hidden
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gated", [False, True])
def test_gradients_are_those_of_whole_matrices(gated):
    found = []
    for run in (dispatch, by_formula):
        hidden, chosen, weights, experts, base = case([2, None, 3, 0], 30, 2, gated)
        hidden.requires_grad_()
        weights.requires_grad_()
        leaves = {"hidden": hidden, "weights": weights, **dict(experts.named_parameters())}
        output = run(hidden, chosen, weights, experts, base)
        found.append(torch.autograd.grad(output.square().sum(), list(leaves.values())))
    for name, ours, expected in zip(leaves, *found, strict=True):
        assert expected.abs().max() > 0, name
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-9, msg=name)  # the weights are float32


def test_every_token_meets_the_base_once_and_no_token_of_a_full_expert_meets_it():
    hidden, chosen, weights, experts, base = case([2, 2, 2, 2, None], 40, 3, gated=True)
    met = {}
    for matrix in (*base.entries, "down_proj"):
        base.get_submodule(matrix).register_forward_pre_hook(
            lambda _, given, matrix=matrix: met.setdefault(matrix, []).append(len(given[0]))
        )
    dispatch(hidden, chosen, weights, experts, base)
    assert met == {matrix: [40] for matrix in (*base.entries, "down_proj")}
    met.clear()
    only_full = torch.where(torch.arange(40).unsqueeze(1) < 25, 4, chosen[:, :1] % 4)
    dispatch(hidden, only_full, weights[:, :1], experts, base)
    assert met == {matrix: [15] for matrix in (*base.entries, "down_proj")}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_output_keeps_the_dtype_and_lies_near_the_precise_one(dtype):
    hidden, chosen, weights, experts, base = case(MIXED, 30, 2, gated=True)
    precise = dispatch(hidden, chosen, weights, experts, base).detach()
    found = dispatch(hidden.to(dtype), chosen, weights, experts.to(dtype), base.to(dtype))
    assert found.dtype == dtype
    tolerance = {torch.bfloat16: 3e-2, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(found.double(), precise, rtol=tolerance, atol=tolerance * float(precise.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"experts_per_token": 2, "fallback": True, "decide": "once"}], ids=str)
def test_every_family_answers_as_its_materialised_model(family, options):
    seed, model = unified(family, **options)
    full, batch = materialised(model.double(), seed), tiny_inputs(family, LENGTHS)
    with torch.no_grad():
        found, expected = (one(**batch, output_routing=True) for one in (model, full))
    used = {int(expert) for routing in found.routings.values() for expert in routing.experts.flatten()}
    assert {0, 1, 2} <= used, "the test needs a router that spreads tokens"
    nan = family == "gemma2"  # transformers' own gives NaN for a text that is mostly padding, in float64
    torch.testing.assert_close(answer(found), answer(expected), rtol=1e-9, atol=1e-9, equal_nan=nan)
    plain = answer(tiny_unified(seed, expert_ranks=MIXED, context=own_context(family)).double()(**batch))
    assert (answer(found) - plain)[1].abs().max() > 0.01, "the experts must differ from the seed"


@pytest.mark.parametrize(("family", "class_name"), EVERY_CLASS)
def test_factors_of_zero_are_the_seed_bit_for_bit(family, class_name):
    seed, batch = tiny_seed(family, class_name), tiny_inputs(family, [9, 9, 9])
    inputs = {name: tensor for name, tensor in batch.items() if name != "attention_mask"}
    for k in (1, 2):
        model = tiny_unified(seed, expert_ranks=[3, 1, 2], context=own_context(family), experts_per_token=k)
        with torch.no_grad():
            if k == 1:
                for router in model.routers.values():
                    router.bias[1] = 1e4
                assert torch.equal(answer(model(**inputs)), answer(seed(**inputs)))
            else:
                torch.testing.assert_close(answer(model(**inputs)), answer(seed(**inputs)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("context", "options"), [("seed", {}), ("causal", {"warmup_tokens": 4, "decide": "once"})])
def test_the_seeds_own_ffn_is_the_base(context, options):
    seed, model = unified("llama", context=context, **options)
    full, batch = materialised(model.double(), seed), tiny_inputs("llama", LENGTHS)
    with torch.no_grad():
        found, expected = (one(**batch) for one in (model, full))
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)
        texts = [one.generate(**tiny_inputs("llama", [5, 7], "left"), max_new_tokens=6) for one in (model, full)]
    assert torch.equal(*texts)


@pytest.mark.parametrize(("family", "class_name"), EVERY_CLASS)
def test_factors_are_saved_as_such_and_load_bit_for_bit(family, class_name, tmp_path):
    _, model = unified(family, class_name=class_name, fallback=True)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["expert_ranks"] == MIXED
    auto = AutoModelForCausalLM if class_name.endswith("ForCausalLM") else AutoModel
    auto = type(model) if class_name.endswith("ForImageClassification") else auto
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.config.expert_ranks == MIXED
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    stored = load_file(tmp_path / "model.safetensors")
    assert not any(".experts.3." in name for name in stored)  # the fallback is the base, which is there once
    (factor,) = (name for name in stored if name.endswith(f".1.{ARCHITECTURES[family].ffn}.experts.2.up_proj_A"))
    assert stored[factor].shape == (5, 32)


@pytest.mark.parametrize("family", ["bert", "llama", "vit"])
def test_gradients_are_the_same_with_checkpointing(family):
    found = []
    for checkpointing in (False, True):
        _, model = unified(family, experts_per_token=2, attention_dropout=0.0)
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        answer(model(**tiny_inputs(family, LENGTHS))).square().mean().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        found.append(gradients)
    assert any(name.endswith("_A") for name in found[0])
    torch.testing.assert_close(*found)


def test_an_inactive_low_rank_expert_is_never_chosen():
    seed, model = unified("bert", experts_per_token=1)
    model.set_active_experts(["owner-2"])
    full = materialised(model, seed)
    full.set_active_experts(["owner-2"])
    with torch.no_grad():
        found, expected = (one(**tiny_inputs("bert", LENGTHS)).last_hidden_state for one in (model, full))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_bfloat16_model_keeps_its_factors_in_bfloat16(tmp_path):
    _, model = unified("llama")
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data if ".router." in name else parameter.data.bfloat16()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {p.dtype for layer in moe_layers(loaded) for p in layer.experts.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        assert loaded(**tiny_inputs("llama", LENGTHS)).logits.dtype == torch.bfloat16


def test_a_new_model_starts_as_the_base_and_can_be_trained():
    model = UNIFIED_MODELS[type(tiny_seed("bert"))](
        unified_config(tiny_seed("bert").config, expert_names=["a", "b"], expert_ranks=[2, 2], experts_per_token=2)
    )
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            assert parameter.any() == name.endswith("_A"), name
    model(**tiny_inputs("bert", LENGTHS)).last_hidden_state.square().mean().backward()
    for name, parameter in model.named_parameters():
        if name.endswith("_B"):
            assert parameter.grad.any(), name


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("modules", [["q_proj", "v_proj"], ["gate_proj", "up_proj", "down_proj"]], ids=str)
def test_a_peft_adapter_trains_itself_alone(modules):
    peft = pytest.importorskip("peft")
    _, model = unified("llama", ranks=[2, 3], experts_per_token=2)
    config = peft.LoraConfig(r=2, target_modules=modules, init_lora_weights=False)
    wrapped = peft.get_peft_model(copy.deepcopy(model), config)
    trained = {name for name, parameter in wrapped.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".lora_" in name for name in trained)
    batch = tiny_inputs("llama", LENGTHS)
    output = wrapped(**batch).logits
    output.square().mean().backward()
    assert all(parameter.grad.any() for name, parameter in wrapped.named_parameters() if parameter.requires_grad)
    with torch.no_grad():
        assert not torch.allclose(output, model(**batch).logits, atol=1e-3)
        torch.testing.assert_close(wrapped.merge_and_unload()(**batch).logits, output, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("ranks", [[2], [2, None, 3, 1], [2, -1, 3]], ids=str)
def test_ranks_that_do_not_fit_the_owners_are_refused(ranks):
    with pytest.raises(ValueError, match="expert_ranks.*expected a rank or None for each of owner-0"):
        tiny_unified(tiny_seed("bert"), num_owners=3, expert_ranks=ranks)
