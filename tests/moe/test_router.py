"""The router's scores, weights and gradients (METHODS §1; CASES, row 16)."""

import pytest
import torch

from collegium.moe.router import Router

ITEMS, TOKENS, DIM, EXPERTS = 5, 7, 6, 4
ROUNDING = 1e-6  # of p / p in the backward pass; a real gradient is above 1e-4 here


def make_router(scale=1.0, **options):
    torch.manual_seed(0)
    router = Router(DIM, EXPERTS, **options)
    with torch.no_grad():
        router.weight.normal_(std=scale)
        router.bias.normal_()
        router.centre.normal_()
        router.context_weight.fill_(0.3)
    return router


def inputs():
    """FFN inputs, and the mean over each sequence as the context."""
    return torch.randn(ITEMS, TOKENS, DIM, generator=torch.Generator().manual_seed(1)), mean_of_scores


def mean_of_scores(scores):
    return scores.mean(dim=1, keepdim=True)


def gradients(router):
    """Gradients of a loss on the weights alone, as the task loss gives them."""
    hidden, context = inputs()
    weights = router(hidden, context).weights
    values = torch.randn(weights.shape, generator=torch.Generator().manual_seed(2))
    (weights * values).sum().backward()
    return router


def test_scores_are_the_formula():
    router = make_router()
    with torch.no_grad():
        router.temperature.fill_(2.5)
    hidden, context = inputs()
    mixed = 0.7 * hidden + 0.3 * hidden.mean(dim=1, keepdim=True)  # the scores of a mean are the mean of the scores
    expected = ((mixed - router.centre) @ router.weight.T + router.bias) / 2.5
    torch.testing.assert_close(router.scores(hidden, context), expected, rtol=1e-5, atol=1e-5)
    alone = ((hidden - router.centre) @ router.weight.T + router.bias) / 2.5
    torch.testing.assert_close(router.scores(hidden, None), alone, rtol=1e-5, atol=1e-5)


def test_the_best_expert_comes_first_and_temperature_never_changes_it():
    router = make_router(experts_per_token=2)
    before = router(*inputs())
    best = before.logits.topk(2, dim=-1).indices
    assert torch.equal(before.experts, best)
    with torch.no_grad():
        router.temperature.fill_(7.0)
    assert torch.equal(router(*inputs()).experts, best)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_straight_through_weight_at_top_1_is_exactly_one(scale):
    weights = make_router(scale)(*inputs()).weights
    assert torch.equal(weights, torch.ones(ITEMS, TOKENS, 1))


@pytest.mark.parametrize("weighting", ["straight-through", "softmax"])
def test_case_16_the_router_learns_at_top_1(weighting):
    router = gradients(make_router(weighting=weighting, learn_context_weight=True))
    for parameter in (router.weight, router.bias, router.context_weight):
        assert parameter.grad.abs().max() > 1e-4
    assert router.centre.grad is None
    assert router.temperature.grad is None


def test_straight_through_has_the_gradient_of_the_probability():
    ours = gradients(make_router()).weight.grad
    torch.testing.assert_close(ours, gradients(make_router(weighting="softmax")).weight.grad)


def test_case_16_the_published_weight_gives_no_gradient_at_top_1():
    router = gradients(make_router(weighting="renormalised", learn_context_weight=True))
    for parameter in (router.weight, router.bias, router.context_weight):
        assert parameter.grad.abs().max() < ROUNDING


def test_context_weight_has_no_gradient_unless_it_is_learned():
    assert gradients(make_router()).context_weight.grad is None


def test_softmax_weight_is_the_probability():
    routing = make_router(weighting="softmax", experts_per_token=2)(*inputs())
    torch.testing.assert_close(routing.weights, routing.logits.softmax(dim=-1).topk(2, dim=-1).values)


@pytest.mark.parametrize("weighting", ["straight-through", "renormalised"])
def test_two_weights_sum_to_one_and_keep_their_ratio(weighting):
    routing = make_router(weighting=weighting, experts_per_token=2)(*inputs())
    torch.testing.assert_close(routing.weights.sum(dim=-1), torch.ones(ITEMS, TOKENS))
    best = routing.logits.topk(2, dim=-1).values
    torch.testing.assert_close(routing.weights[..., 0] / routing.weights[..., 1], (best[..., 0] - best[..., 1]).exp())


@pytest.mark.parametrize(("outside", "bound"), [(1.7, 1.0), (-0.4, 0.0)])
def test_context_weight_is_clamped_but_can_come_back(outside, bound):
    router = make_router(learn_context_weight=True)
    router.context_weight.data.fill_(outside)
    scores = router.scores(*inputs())
    router.context_weight.data.fill_(bound)
    torch.testing.assert_close(scores, router.scores(*inputs()))
    router.context_weight.data.fill_(outside)
    assert gradients(router).context_weight.grad.abs() > 1e-4


def test_supervised_scores_are_the_same_and_train_the_router_alone():
    router = make_router()
    hidden, context = inputs()
    routing = router(hidden.requires_grad_(), context)
    assert torch.equal(routing.supervised_logits, routing.logits)
    routing.supervised_logits.square().sum().backward()
    assert hidden.grad is None
    assert router.weight.grad.abs().max() > 0


def test_scores_of_bfloat16_inputs_are_float32():
    router = make_router()
    hidden, context = inputs()
    assert router.scores(hidden.bfloat16(), context).dtype == torch.float32


def test_scores_under_autocast_are_those_without():
    router = make_router()
    expected = router.scores(*inputs())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(router.scores(*inputs()), expected)


def test_case_17_one_expert_is_always_picked_with_weight_one_even_where_two_are_asked_for():
    router = Router(DIM, 1, experts_per_token=2)
    routing = router(*inputs())
    assert routing.experts.shape == (ITEMS, TOKENS, 1)
    assert torch.equal(routing.weights, torch.ones(ITEMS, TOKENS, 1))
