"""Unified models layer by layer: who decides, what is shared, who may call, batch-mates and padding (promise 4)."""

import ast
import copy
import sys
import threading
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers.models.bert.modeling_bert import BertIntermediate

import collegium.moe
from collegium.moe.context import RoutingState, current_state, masked_mean, routing_state
from collegium.moe.layer import MoEFeedForward
from collegium.moe.modeling import CollegiumBertModel

CONTEXTS = ["token", "sequence", "seed"]
LENGTHS = [4, 9, 2, 7, 9, 5, 3, 8]
STEEP = 2.0  # wide gaps between logits (checked): no near-tie flips


def layers_of(model):
    return [module for module in model.modules() if isinstance(module, MoEFeedForward)]


def assert_margin(routings, batch, least=1e-3):
    for routing in routings.values():
        best = routing.logits[batch["attention_mask"].bool()].topk(2, dim=-1).values
        assert (best[:, 0] - best[:, 1]).min() > least, "a near-tie: the test says nothing"


def test_the_context_is_the_mean_over_the_tokens_alone():
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]], [[9.0, 9.0], [5.0, 5.0], [7.0, 7.0]]])
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    assert torch.equal(masked_mean(hidden, mask), torch.tensor([[2.0, 4.0], [6.0, 6.0]]))


@pytest.mark.parametrize("context", ["sequence", "seed"])
def test_the_router_sees_the_masked_mean_of_its_own_layers_input(context, make_moe, make_batch, seed):
    decide = "every-layer" if context == "seed" else "once"
    model = make_moe(noise=0.3, context=context, decide=decide)
    batch = make_batch([3, 8, 5])
    seen = {}

    def keep(name, module):
        module.register_forward_pre_hook(lambda _, arguments: seen.setdefault(name, []).append(arguments))

    keep("layer", model.encoder.layer[1].intermediate)
    routing = model(**batch, output_routing=True).routings[1]
    hidden = seen["layer"][0][0]  # with `seed`, the first pass is the seed's
    assert len(seen["layer"]) == (2 if context == "seed" else 1)
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
    router = model.routers[1]
    mixed = 0.5 * seen["layer"][-1][0] + 0.5 * mean
    torch.testing.assert_close(routing.logits, router.scores(mixed, None), rtol=0, atol=1e-5)
    if context == "seed":
        wanted = {}
        hook = seed.model.encoder.layer[1].intermediate.register_forward_pre_hook(
            lambda _, arguments: wanted.update(z=arguments[0])
        )
        seed.model(**batch)
        hook.remove()
        tokens = batch["attention_mask"].bool()
        torch.testing.assert_close(hidden[tokens], wanted["z"][tokens])
        assert (seen["layer"][1][0] - hidden)[tokens].abs().max() > 0.01  # the second pass is the experts'


def test_token_context_leaves_the_router_without_context(make_moe, make_batch):
    model = make_moe(context="token")
    routing = model(**make_batch([9] * 4), output_routing=True).routings[1]
    assert any(len(sequence.unique()) > 1 for sequence in routing.experts)  # tokens of one sequence part


@pytest.mark.parametrize(("decide", "context"), list(product(["once", "every-layer"], CONTEXTS)))
@pytest.mark.parametrize("experts_per_token", [1, 2])
def test_cases_13_and_14_neither_batch_mates_nor_padding_change_an_answer(
    decide, context, experts_per_token, make_moe, make_batch
):
    model = make_moe(
        noise=0.2, steepness=STEEP, decide=decide, context=context, experts_per_token=experts_per_token, fallback=True
    )
    batch = make_batch(LENGTHS)
    together = model(**batch, output_routing=True)
    assert_margin(together.routings, batch)
    tokens = batch["attention_mask"].bool()
    tolerance = 1e-5 * float(together.last_hidden_state.detach().abs().max())  # random states are long
    for side, width in (("left", 9), ("left", 14), ("right", 14)):
        other = make_batch(LENGTHS, side=side, width=width)
        output = model(**other, output_routing=True)
        kept = other["attention_mask"].bool()
        torch.testing.assert_close(
            output.last_hidden_state[kept], together.last_hidden_state[tokens], rtol=0, atol=tolerance
        )
        for layer, routing in output.routings.items():
            assert torch.equal(routing.experts[kept], together.routings[layer].experts[tokens])
    for row, length in enumerate(LENGTHS):
        alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
        output = model(**alone, output_routing=True)
        torch.testing.assert_close(
            output.last_hidden_state[0], together.last_hidden_state[row, :length], rtol=0, atol=tolerance
        )
        for layer, routing in output.routings.items():
            assert torch.equal(routing.experts[0], together.routings[layer].experts[row, :length])


def test_what_the_padding_says_changes_nothing(make_moe, make_batch):
    model = make_moe(noise=0.2)
    outputs = [model(**make_batch([2, 8], padding=padding)).last_hidden_state for padding in (0, 11)]
    mask = make_batch([2, 8])["attention_mask"].bool()
    assert torch.equal(outputs[0][mask], outputs[1][mask])


def test_no_mask_means_no_padding(make_moe, make_batch):
    model, batch = make_moe(noise=0.2), make_batch([6, 6])
    expected = model(**batch).last_hidden_state
    assert torch.equal(model(input_ids=batch["input_ids"]).last_hidden_state, expected)


def test_embeddings_given_instead_of_ids_give_the_same(make_moe, make_batch):
    model, batch = make_moe(noise=0.2), make_batch([4, 6])
    given = model.embeddings.word_embeddings(batch["input_ids"])
    output = model(inputs_embeds=given, attention_mask=batch["attention_mask"])
    assert torch.equal(output.last_hidden_state, model(**batch).last_hidden_state)


@pytest.mark.parametrize("decide_layer", [0, 1, 2])
def test_layers_below_the_decision_keep_the_seeds_ffn(decide_layer, make_moe):
    model = make_moe(decide="once", decide_layer=decide_layer)
    plain = [type(layer.intermediate) is BertIntermediate for layer in model.encoder.layer]
    assert plain == [index < decide_layer for index in range(3)]
    assert list(model.routers) == [decide_layer]


def test_every_layer_has_its_own_router(make_moe):
    assert list(make_moe(decide="every-layer").routers) == [0, 1, 2]


def test_deciding_once_uses_that_decision_in_all_later_layers(make_moe, make_batch):
    model, batch = make_moe(noise=0.3, decide="once", context="token"), make_batch([6, 6])
    with torch.no_grad():
        routing = model(**batch, output_routing=True).routings[1]
        every = make_moe(noise=0.3, decide="every-layer", context="token")
        for router in every.routers.values():
            router.weight.zero_()
        every.load_state_dict({**model.state_dict()}, strict=False)
        forced = iter([None, routing, routing])

        def force(_module, _arguments, output):
            decision = next(forced)
            return output if decision is None else decision

        for router in every.routers.values():
            router.register_forward_hook(force)
        seeds = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("encoder.layer.0.")}
        for expert in every.encoder.layer[0].intermediate.experts:  # below the decision: the seed's FFN
            expert.up_proj.weight.copy_(seeds["encoder.layer.0.intermediate.dense.weight"])
            expert.up_proj.bias.copy_(seeds["encoder.layer.0.intermediate.dense.bias"])
            expert.down_proj.weight.copy_(seeds["encoder.layer.0.output.dense.weight"])
            expert.down_proj.bias.copy_(seeds["encoder.layer.0.output.dense.bias"])
        expected = every(**batch).last_hidden_state
    torch.testing.assert_close(model(**batch).last_hidden_state, expected, rtol=0, atol=1e-5)


def test_a_decision_does_not_outlive_its_forward_pass(make_moe, make_batch):
    model = make_moe(noise=0.3)
    first, second = make_batch([6, 6]), make_batch([3, 9, 5])
    expected = model(**second).last_hidden_state
    model(**first)
    assert torch.equal(model(**second).last_hidden_state, expected)


def test_a_copied_model_keeps_no_old_state(make_moe, make_batch):
    model = make_moe(noise=0.3, context="seed", decide="every-layer")
    first, second = make_batch([6, 6]), make_batch([3, 9, 5])
    model(**first)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    fresh = make_moe(noise=0.3, context="seed", decide="every-layer")
    assert torch.equal(copied(**second).last_hidden_state, fresh(**second).last_hidden_state)


def test_two_threads_at_once_give_what_they_give_one_after_the_other(make_moe, make_batch):
    model = make_moe(noise=0.3, context="seed", decide="every-layer")
    batches = [make_batch([3, 9, 5]), make_batch([12, 4])]
    expected = [model(**batch).last_hidden_state for batch in batches]
    meet = threading.Barrier(2, timeout=30)

    def wait(*_):  # in every pass of either thread, so that passes interleave
        meet.wait()

    hook = model.encoder.layer[1].register_forward_pre_hook(wait)
    found = [[], []]

    def work(index):
        for _ in range(5):
            with torch.no_grad():
                found[index].append(model(**batches[index]).last_hidden_state)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hook.remove()
    for index in range(2):
        assert len(found[index]) == 5
        assert all(torch.equal(one, expected[index]) for one in found[index])


def test_a_layer_called_outside_its_model_says_so(make_moe, make_batch):
    model = make_moe()
    model(**make_batch([4, 4]))
    with pytest.raises(RuntimeError, match="called outside its model"):
        model.encoder.layer[1](torch.zeros(1, 4, 32))


def test_an_error_in_a_pass_leaves_no_state(make_moe):
    with pytest.raises(KeyError), routing_state(RoutingState(torch.ones(1, 1))):
        raise KeyError
    with pytest.raises(RuntimeError, match="called outside its model"):
        current_state()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"is_decoder": True}, "is_decoder = True is not supported"),
        ({"chunk_size_feed_forward": 2}, "chunk_size_feed_forward = 2 is not supported"),
        ({"decide_layer": 3}, "the seed's layers are 0 to 2"),
        ({"decide_layer": -1}, "the seed's layers are 0 to 2"),
        ({"seed_model_type": "mamba"}, "'mamba' is not supported; supported: bert, "),
        ({"decide": "sometimes"}, "expected one of .*'every-layer'"),
        ({"context": "sequense"}, "expected one of .*'sequence'"),
        ({"weighting": "top"}, "expected one of .*'renormalised'"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(option, message, make_moe):
    with pytest.raises(Exception, match=message):
        make_moe(**option)


def test_cross_attention_is_refused(make_moe):
    with pytest.raises(ValueError, match=r"decoder|add_cross_attention"):
        make_moe(add_cross_attention=True)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [({}, "give input_ids or inputs_embeds"), ({"attention_mask": torch.ones(1, 1, 4, 4)}, "expected \\(1, 4\\)")],
)
def test_wrong_inputs_are_named(inputs, message, make_moe):
    given = {} if not inputs else {"input_ids": torch.full((1, 4), 5), **inputs}
    with pytest.raises(ValueError, match=message):
        make_moe()(**given)


def test_a_tuple_comes_back_where_it_is_asked_for(make_moe, make_batch):
    model, batch = make_moe(), make_batch([4, 6])
    expected = model(**batch)
    given = model(**batch, return_dict=False)
    assert isinstance(given, tuple)
    assert torch.equal(given[0], expected.last_hidden_state)
    model.config.return_dict = False
    assert torch.equal(model(**batch)[0], expected.last_hidden_state)
    assert torch.equal(model(**batch, return_dict=True).last_hidden_state, expected.last_hidden_state)


def test_hidden_states_and_attentions_are_the_seeds(make_moe, make_batch):
    output = make_moe()(**make_batch([4, 6]), output_hidden_states=True, output_routing=True)
    assert len(output.hidden_states) == 4
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)


def test_routings_come_only_where_they_are_asked_for(make_moe, make_batch):
    assert make_moe()(**make_batch([4, 6])).routings is None


def test_case_17_a_model_of_one_owner_works(make_moe, make_batch, seed):
    model = make_moe(num_owners=1, noise=0.2, experts_per_token=2)
    output = model(**make_batch([4, 6]), output_routing=True)
    assert output.routings[1].experts.unique().tolist() == [0]
    assert torch.isfinite(output.last_hidden_state).all()


def test_a_fallback_picked_for_everything_is_the_seed(make_moe, make_batch, seed):
    model, batch = make_moe(noise=0.5, fallback=True), make_batch([6, 6])
    with torch.no_grad():
        model.routers[1].bias[-1] = 1e4
    assert torch.equal(model(**batch).last_hidden_state, seed.model(**batch).last_hidden_state)


def test_the_seed_kept_for_its_means_alone_is_never_picked(make_moe, make_batch):
    model = make_moe(num_owners=2, context="seed", decide="every-layer")
    assert [len(layer.experts) for layer in layers_of(model)] == [3, 3, 3]
    output = model(**make_batch([6, 6, 9]), output_routing=True)
    assert {routing.logits.shape[-1] for routing in output.routings.values()} == {2}


def test_files_that_travel_into_a_model_folder_import_nothing_of_ours():
    allowed = {"torch", "transformers", "huggingface_hub", *sys.stdlib_module_names}
    files = list(Path(collegium.moe.__file__).parent.glob("*.py"))
    assert {file.stem for file in files} >= {"modeling", "layer", "router", "experts", "context", "architectures"}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1, f"{file.name} imports from another folder"
                assert (file.parent / f"{node.module}.py").is_file(), f"{file.name} imports .{node.module}"
            for name in names:
                assert name.partition(".")[0] in allowed, f"{file.name} imports {name}"


def test_the_class_is_registered_under_its_own_model_type():
    assert CollegiumBertModel.config_class.model_type == "collegium-bert"
