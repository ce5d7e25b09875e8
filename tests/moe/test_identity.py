"""Promise 3: N copies of the seed as experts are the seed."""

from itertools import product

import pytest
import torch

DECISIONS = [
    {"decide": decide, "context": context, "fallback": fallback}
    for decide, context, fallback in product(("once", "every-layer"), ("token", "sequence", "seed"), (False, True))
]
LENGTHS = [3, 9, 6, 9]
FLOAT64_ROUNDING = 1e-12
FLOAT32_WEIGHTS = 1e-6  # two weights in float32 sum to 1 up to 1e-7
FLOAT32_BATCHES = 1e-5  # a matrix product over some of the rows rounds otherwise than one over all


def seed_output(seed, batch, dtype=torch.float32):
    model = seed.model.to(dtype)
    try:
        positions = (batch["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
        return model(**batch, position_ids=positions).last_hidden_state
    finally:
        seed.model.float()


def only_tokens(states, batch):
    return states[batch["attention_mask"].bool()]


def test_a_model_in_float64_stays_in_float64_through_the_experts(make_moe, make_batch):
    assert make_moe().double()(**make_batch(LENGTHS)).last_hidden_state.dtype == torch.float64


@pytest.mark.parametrize("options", DECISIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize(
    ("experts_per_token", "weighting", "tolerance"),
    [
        (1, "straight-through", FLOAT64_ROUNDING),
        (1, "renormalised", FLOAT64_ROUNDING),
        (2, "straight-through", FLOAT32_WEIGHTS),
        (2, "renormalised", FLOAT32_WEIGHTS),
    ],
)
def test_copies_of_the_seed_are_the_seed(options, experts_per_token, weighting, tolerance, make_moe, make_batch, seed):
    batch = make_batch(LENGTHS)
    model = make_moe(**options, experts_per_token=experts_per_token, weighting=weighting).double()
    output = model(**batch, output_routing=True)
    expected = seed_output(seed, batch, torch.float64)
    torch.testing.assert_close(
        only_tokens(output.last_hidden_state, batch), only_tokens(expected, batch), rtol=0, atol=tolerance
    )
    used = {int(expert) for routing in output.routings.values() for expert in routing.experts.flatten()}
    assert len(used) > 1, "the test needs a router that spreads tokens"


@pytest.mark.parametrize("options", DECISIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_tokens_that_all_go_to_one_copy_give_the_seed_bit_for_bit(options, make_moe, make_batch, seed):
    batch = make_batch(LENGTHS)
    model = make_moe(**options)
    with torch.no_grad():
        for router in model.routers.values():
            router.bias[1] = 1e4
    assert torch.equal(model(**batch).last_hidden_state, seed_output(seed, batch))


@pytest.mark.parametrize("options", DECISIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_spread_tokens_give_the_seed_to_float32_rounding(options, make_moe, make_batch, seed):
    batch = make_batch(LENGTHS)
    difference = make_moe(**options)(**batch).last_hidden_state - seed_output(seed, batch)
    assert only_tokens(difference, batch).abs().max() < FLOAT32_BATCHES


def test_experts_that_differ_give_another_answer(make_moe, make_batch, seed):
    batch = make_batch(LENGTHS)
    difference = make_moe(noise=0.1)(**batch).last_hidden_state - seed_output(seed, batch)
    assert only_tokens(difference, batch).abs().max() > 0.01
