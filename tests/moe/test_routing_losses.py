"""Losses on router scores, against values computed by hand; padding never counts (CASES, row 15)."""

import math

import pytest
import torch

from collegium.moe.losses import load_balancing_loss, owner_routing_loss


def test_owner_loss_equals_the_hand_computed_value():
    # two items of two tokens; probabilities of three experts chosen so that the logarithms are simple
    probabilities = torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], [[0.125, 0.125, 0.75], [0.1, 0.1, 0.8]]])
    owners = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # the first item was chosen by two owners
    mask = torch.tensor([[1, 1], [1, 0]])
    first = (math.log(2) + math.log(4)) / 2  # both tokens: ½ log 2 + ½ log 4
    second = -math.log(0.75)
    value = owner_routing_loss(probabilities.log(), owners, mask)
    assert value.item() == pytest.approx((first + second) / 2, abs=1e-6)


def test_owner_loss_weighs_items_alike_whatever_their_length():
    logits = torch.tensor([[[2.0, 0.0]] * 4, [[0.0, 2.0]] * 4])
    owners = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    long_and_short = owner_routing_loss(logits, owners, torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]))
    both_long = owner_routing_loss(logits, owners, torch.ones(2, 4, dtype=torch.long))
    assert long_and_short.item() == pytest.approx(both_long.item(), abs=1e-6)


def test_owner_loss_of_one_owner_is_zero():
    loss = owner_routing_loss(torch.randn(3, 4, 1), torch.ones(3, 1), torch.ones(3, 4, dtype=torch.long))
    assert loss.item() == 0


def test_load_balancing_loss_equals_the_hand_computed_value():
    probabilities = torch.tensor([[[0.75, 0.25], [0.5, 0.5]], [[0.25, 0.75], [0.9, 0.1]]])
    experts = torch.tensor([[[0], [0]], [[1], [0]]])
    mask = torch.tensor([[1, 1], [1, 0]])
    # shares of tokens (2/3, 1/3), mean probabilities (1/2, 1/2)
    assert load_balancing_loss(probabilities.log(), experts, mask).item() == pytest.approx(1.0, abs=1e-6)
    everywhere = torch.ones(2, 2, dtype=torch.long)
    # with the last token: (3/4, 1/4) and (0.6, 0.4)
    assert load_balancing_loss(probabilities.log(), experts, everywhere).item() == pytest.approx(
        2 * (0.75 * 0.6 + 0.25 * 0.4), abs=1e-6
    )


def test_load_balancing_loss_is_one_when_even_and_the_number_of_experts_at_worst():
    mask = torch.ones(1, 4, dtype=torch.long)
    even = torch.arange(4).reshape(1, 4, 1)
    assert load_balancing_loss(torch.zeros(1, 4, 4), even, mask).item() == pytest.approx(1.0)
    collapsed = torch.full((1, 4, 4), -1e4)
    collapsed[..., 2] = 0
    assert load_balancing_loss(collapsed, torch.full((1, 4, 1), 2), mask).item() == pytest.approx(4.0)


def test_load_balancing_loss_of_two_experts_per_token_counts_both():
    logits = torch.zeros(1, 2, 4)
    spread = torch.tensor([[[0, 1], [2, 3]]])
    assert load_balancing_loss(logits, spread, torch.ones(1, 2, dtype=torch.long)).item() == pytest.approx(1.0)


def test_load_balancing_loss_leaves_out_the_tokens_of_a_warm_up():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, 3, generator=generator)
    experts = logits.topk(2, dim=-1).indices
    late = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0]])
    expected = load_balancing_loss(logits, experts, late)
    experts[:, :2] = 3  # the seed's FFN, which the router cannot pick
    everywhere = torch.tensor([[1] * 6, [1, 1, 1, 1, 1, 0]])
    assert torch.equal(load_balancing_loss(logits, experts, everywhere), expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_case_15_what_stands_in_the_padding_changes_no_loss(side):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 6, 4, generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]])
    mask = mask.flip(1) if side == "left" else mask
    owners = torch.tensor([[1.0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    changed = torch.where(mask.bool().unsqueeze(-1), logits, 50 * torch.randn(3, 6, 4, generator=generator))
    assert torch.equal(owner_routing_loss(logits, owners, mask), owner_routing_loss(changed, owners, mask))
    before = load_balancing_loss(logits, logits.argmax(dim=-1, keepdim=True), mask)
    assert torch.equal(before, load_balancing_loss(changed, changed.argmax(dim=-1, keepdim=True), mask))


def test_case_15_the_models_losses_do_not_depend_on_the_padding_token(make_moe, make_batch):
    model = make_moe(context="token", decide="every-layer")
    values = []
    for padding in (0, 9):
        batch = make_batch([2, 8, 5], padding=padding, width=12)
        routings = model(**batch, output_routing=True).routings.values()
        owners = torch.eye(3)
        values.append(
            [
                [load_balancing_loss(one.logits, one.experts, batch["attention_mask"]).item() for one in routings],
                [owner_routing_loss(one.supervised_logits, owners, batch["attention_mask"]).item() for one in routings],
            ]
        )
    assert values[0] == values[1]
