"""Grouped dispatch against the plain loop over tokens."""

import pytest
import torch
from torch import nn

from collegium.moe.experts import FeedForward, dispatch

DIM, INNER, EXPERTS = 6, 10, 5


def make_experts(gated=False):
    torch.manual_seed(0)
    return nn.ModuleList(FeedForward(DIM, INNER, "gelu", gated=gated, bias=not gated) for _ in range(EXPERTS))


def plain_loop(hidden, chosen, weights, experts):
    rows = []
    for token, row in enumerate(hidden):
        rows.append(sum(weights[token, k] * experts[int(expert)](row) for k, expert in enumerate(chosen[token])))
    return torch.stack(rows)


def case(rows, experts_per_token, used=EXPERTS, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows + experts_per_token)
    hidden = torch.randn(rows, DIM, generator=generator).to(dtype)
    order = torch.rand(rows, used, generator=generator).argsort(dim=1)
    weights = torch.rand(rows, experts_per_token, generator=generator)
    return hidden, order[:, :experts_per_token], weights


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("rows", "k", "used"), [(1, 1, 5), (40, 1, 5), (40, 2, 5), (40, 5, 5), (40, 2, 2), (3, 1, 1)])
def test_grouped_dispatch_is_the_plain_loop(rows, k, used, gated):
    experts = make_experts(gated)
    hidden, chosen, weights = case(rows, k, used)
    expected = plain_loop(hidden, chosen, weights, experts)
    torch.testing.assert_close(dispatch(hidden, chosen, weights, experts), expected, rtol=1e-5, atol=1e-6)


def test_a_gated_expert_is_the_formula():
    expert = make_experts(gated=True)[0]
    hidden = case(7, 1)[0]
    gate, up, down = expert.gate_proj.weight, expert.up_proj.weight, expert.down_proj.weight
    expected = (torch.nn.functional.gelu(hidden @ gate.T) * (hidden @ up.T)) @ down.T
    torch.testing.assert_close(expert(hidden), expected)


def test_gradients_are_those_of_the_plain_loop():
    hidden, chosen, weights = case(40, 2)
    found = []
    for run in (dispatch, plain_loop):
        experts = make_experts()
        leaves = [hidden.clone().requires_grad_(), weights.clone().requires_grad_()]
        run(leaves[0], chosen, leaves[1], experts).square().sum().backward()
        found.append([leaf.grad for leaf in leaves] + [parameter.grad for parameter in experts.parameters()])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_an_expert_without_tokens_is_not_run():
    experts = make_experts()
    experts[3].forward = None  # calling it would fail
    hidden, chosen, weights = case(20, 1, used=3)
    assert dispatch(hidden, chosen, weights, experts).shape == (20, DIM)


def test_no_rows_give_no_rows():
    hidden, chosen, weights = case(0, 2)
    assert dispatch(hidden, chosen, weights, make_experts()).shape == (0, DIM)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_output_keeps_the_dtype(dtype):
    hidden, chosen, weights = case(8, 2, dtype=dtype)
    assert dispatch(hidden, chosen, weights, make_experts().to(dtype)).dtype == dtype


def test_bfloat16_outputs_are_summed_in_float32():
    experts = make_experts().bfloat16()
    hidden, chosen, weights = case(30, 5, dtype=torch.bfloat16)
    expected = torch.zeros(30, DIM)
    for k in range(5):
        outputs = [experts[int(chosen[row, k])](hidden[row]).float() for row in range(30)]
        expected += weights[:, k : k + 1] * torch.stack(outputs)
    assert torch.equal(dispatch(hidden, chosen, weights, experts), expected.bfloat16())
