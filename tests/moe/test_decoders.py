"""Decoders with a cache: at once, token by token or in chunks, greedy, sampled or by beams, the answer is the same."""

import copy
import threading
from functools import cache as cached

import pytest
import torch
from transformers import DynamicCache, StaticCache

from collegium.moe.context import running_mean, running_totals
from families import DECODERS, TEXTS, tiny_inputs, tiny_seed, tiny_unified

CONTEXTS = ["token", "causal", "seed"]
DECISIONS = ["once", "every-layer"]
SLIDING = ["mistral", "gemma2", "gemma3_text"]
PROMPT, TOKENS = 5, 12
CLOSE = 1e-5


@cached
def model_of(family, context, decide):
    """Experts that differ, and a router with wide gaps between its scores."""
    model = tiny_unified(
        tiny_seed(family), noise=0.1, steepness=3.0, context=context, decide=decide, experts_per_token=1
    )
    return model.requires_grad_(False)


def three_texts(family, length=TOKENS):
    return tiny_inputs(family, [length] * 3)["input_ids"]


def chunks_of(ids, *lengths):
    return torch.split(ids, [*lengths, ids.shape[1] - sum(lengths)], dim=1)


def in_chunks(model, chunks, cache=None, mask=None):
    """Logits and routings of a text that comes in chunks."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    logits, routings, seen = [], {}, cache.get_seq_length()
    for chunk in chunks:
        seen += chunk.shape[1]
        given = None if mask is None else mask[:, :seen]
        output = model(input_ids=chunk, attention_mask=given, cache=cache, output_routing=True)
        logits.append(output.logits)
        for layer, routing in output.routings.items():
            routings.setdefault(layer, []).append(routing.experts)
    return torch.cat(logits, dim=1), {layer: torch.cat(parts, dim=1) for layer, parts in routings.items()}


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("decide", DECISIONS)
def test_at_once_token_by_token_and_in_chunks_are_the_same(family, context, decide):
    model, ids = model_of(family, context, decide), three_texts(family)
    at_once = model(input_ids=ids, prompt_length=PROMPT, output_routing=True, use_cache=False)
    ones = [1] * (TOKENS - PROMPT - 1)
    for lengths in ((PROMPT, *ones), (PROMPT, 3)) if context == "seed" else ((1,) * (TOKENS - 1), (5, 1, 4)):
        for cache in (DynamicCache(config=model.config), DynamicCache()):  # the second knows nothing of the model
            if not cache.layers and family in SLIDING:  # such a cache would keep what is out of the window
                continue
            logits, experts = in_chunks(model, chunks_of(ids, *lengths), cache)
            assert (logits - at_once.logits).abs().max() < CLOSE * at_once.logits.abs().max()
            for layer, routing in at_once.routings.items():
                assert torch.equal(experts[layer], routing.experts)


@pytest.mark.parametrize("experts_per_token", [1, 2])
def test_the_first_tokens_take_the_seeds_ffn_and_the_others_go_where_they_went(experts_per_token):
    seed, lengths = tiny_seed("llama"), [9, 3, 7]
    options = {"noise": 0.1, "steepness": 3.0, "decide": "every-layer", "experts_per_token": experts_per_token}
    model, batch = tiny_unified(seed, warmup_tokens=4, **options), tiny_inputs("llama", lengths, side="left")
    output = model(**batch, output_routing=True)
    expected = seed(**batch, position_ids=(batch["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)).logits
    plain = tiny_unified(seed, **options)(**batch, output_routing=True)
    for row, length in enumerate(lengths):
        early = slice(9 - length, min(9, 9 - length + 3))
        assert (output.logits[row, early] - expected[row, early]).abs().max() < CLOSE * expected.abs().max()
        assert (output.routings[0].experts[row, early] == 3).all()
        late = slice(9 - length + 3, 9)
        assert torch.equal(output.routings[0].experts[row, late], plain.routings[0].experts[row, late])
    ids = batch["input_ids"][:1]
    logits, _ = in_chunks(model, torch.split(ids, 1, dim=1))
    assert (logits - output.logits[:1]).abs().max() < CLOSE * logits.abs().max()
    with pytest.raises(ValueError, match="warmup_tokens = 4 needs context = 'causal', got 'token'"):
        tiny_unified(seed, warmup_tokens=4, context="token")


@pytest.mark.parametrize("context", ["causal", "seed"])
@pytest.mark.parametrize("decide", DECISIONS)
def test_what_comes_later_changes_nothing_earlier(context, decide):
    model, ids = model_of("llama", context, decide), three_texts("llama", 40)
    whole = model(input_ids=ids, prompt_length=PROMPT)
    part = model(input_ids=ids[:, :TOKENS], prompt_length=PROMPT)
    assert (whole.logits[:, :TOKENS] - part.logits).abs().max() < CLOSE * part.logits.abs().max()


def test_the_causal_context_is_the_mean_over_the_real_tokens_so_far():
    scores = torch.arange(12.0).reshape(1, 6, 2)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1]])
    expected = torch.tensor([[[0, 0], [2, 3], [3, 4], [3, 4], [14 / 3, 17 / 3], [6, 7]]])
    totals = running_totals(scores, mask, None)
    torch.testing.assert_close(running_mean(totals), expected)
    later = running_totals(scores[:, 4:], mask[:, 4:], totals[:, 3:4])
    torch.testing.assert_close(running_mean(later), expected[:, 4:])


@pytest.mark.parametrize(
    ("family", "how"),
    [(family, {"do_sample": False}) for family in DECODERS]
    + [
        (family, how) for family in ("llama", "gemma3_text", "olmo2") for how in ({"do_sample": True}, {"num_beams": 3})
    ],
)
@pytest.mark.parametrize("context", CONTEXTS)
def test_generation_with_a_cache_is_generation_without(family, context, how):
    model = model_of(family, context, "once" if how.get("num_beams") else "every-layer")
    batch = tiny_inputs(family, [5, 3, 4], side="left")
    options = {**batch, **how, "max_new_tokens": 8, "pad_token_id": 0, "eos_token_id": None}
    found = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        # without a cache every step reads the whole text again: what the prompt was must be said
        prompt = {"prompt_length": batch["attention_mask"].sum(dim=1)} if context == "seed" and not use_cache else {}
        found.append(model.generate(**options, **prompt, use_cache=use_cache))
    assert torch.equal(*found)
    assert len(found[0].unique()) > 4, "a text of one word says nothing"


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_case_14_the_side_of_the_padding_changes_no_continuation(family, context):
    model, lengths = model_of(family, context, "every-layer"), [7, 3, 5]
    at_left = tiny_inputs(family, lengths, side="left")
    logits, _ = in_chunks(model, [at_left["input_ids"]], mask=at_left["attention_mask"])
    continued = model.generate(**at_left, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    for row, length in enumerate(lengths):
        alone = at_left["input_ids"][row : row + 1, 7 - length :]
        expected = model(input_ids=alone).logits[0]
        assert (logits[row, 7 - length :] - expected).abs().max() < CLOSE * expected.abs().max()
        one = model.generate(alone, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert torch.equal(one[0, length:], continued[row, 7:])


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_cropped_cache_goes_on_as_if_the_tokens_had_never_come(family, context):
    model, ids = model_of(family, context, "every-layer"), three_texts(family)
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    model(input_ids=ids[:, :PROMPT], cache=cache)
    wrong = (ids[:, PROMPT : PROMPT + 3] + 1) % 60
    model(input_ids=wrong, cache=cache)
    cache.crop(-3)
    found = model(input_ids=ids[:, PROMPT:], cache=cache).logits
    expected = model(input_ids=ids, prompt_length=PROMPT, use_cache=False).logits[:, PROMPT:]
    assert (found - expected).abs().max() < CLOSE * expected.abs().max()


@pytest.mark.parametrize("context", CONTEXTS)
def test_repeated_chosen_reordered_copied_and_emptied_caches(context):
    model, ids = model_of("llama", context, "every-layer"), three_texts("llama")
    expected = model(input_ids=ids, prompt_length=PROMPT, use_cache=False).logits[:, PROMPT:]
    rest = ids[:, PROMPT:]

    def filled():
        return model(input_ids=ids[:, :PROMPT], use_cache=True).cache

    def check(rows, cache):
        found = model(input_ids=rest[rows], cache=cache).logits
        assert (found - expected[rows]).abs().max() < CLOSE * expected.abs().max()

    repeated, chosen, reordered = filled(), filled(), filled()
    repeated.batch_repeat_interleave(2)
    check([0, 0, 1, 1, 2, 2], repeated)
    chosen.batch_select_indices(torch.tensor([2, 0]))
    check([2, 0], chosen)
    reordered.reorder_cache(torch.tensor([1, 1, 0]))
    check([1, 1, 0], reordered)
    copied = copy.deepcopy(filled())
    check([0, 1, 2], copied)
    copied.reset()
    model(input_ids=ids[:, :PROMPT], cache=copied)
    check([0, 1, 2], copied)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_prompt_read_in_chunks_or_continued_from_a_cache_gives_the_same_text(context):
    model, ids = model_of("llama", context, "every-layer"), three_texts("llama")
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    if context == "seed":  # what the first pass reads is the prompt
        with pytest.raises(ValueError, match="give the whole prompt"):
            model.generate(ids, **options, prefill_chunk_size=5, prompt_length=TOKENS)
    else:
        assert torch.equal(model.generate(ids, **options, prefill_chunk_size=5), expected)
    first = model.generate(ids, **{**options, "max_new_tokens": 3}, return_dict_in_generate=True)
    rest = model.generate(first.sequences, **{**options, "max_new_tokens": 3}, cache=first.cache)
    assert torch.equal(rest, expected)


@pytest.mark.parametrize("context", CONTEXTS)
def test_speculative_decoding_gives_the_greedy_text(context):
    model, draft = model_of("llama", context, "once"), model_of("llama", "token", "every-layer")
    ids = three_texts("llama", PROMPT)[:1]
    options = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, assistant_model=draft, **options), model.generate(ids, **options))


def test_the_memory_is_a_few_numbers_a_token():
    model, ids = model_of("llama", "causal", "every-layer"), three_texts("llama")
    cache = model(input_ids=ids, use_cache=True).cache
    assert [tuple(layer.state.shape) for layer in cache.layers[3:]] == [(3, TOKENS, 4)] * 3  # 3 experts and a count
    assert all(layer.state.dtype == torch.float32 for layer in cache.layers[3:])
    once = model_of("llama", "causal", "once")(input_ids=ids, use_cache=True).cache
    assert [tuple(layer.state.shape) for layer in once.layers[3:]] == [(3, TOKENS, 4)]


def test_no_cache_is_made_where_none_is_wanted():
    model, ids = model_of("llama", "causal", "once"), three_texts("llama")
    assert model(input_ids=ids, use_cache=False).cache is None
    assert model(input_ids=ids).cache.get_seq_length() == TOKENS


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_static_cache_is_refused(context):
    model, ids = model_of("llama", context, "once"), three_texts("llama")
    with pytest.raises(ValueError, match="a static cache is not supported"):
        model(input_ids=ids, cache=StaticCache(config=model.config, max_cache_len=20))
    with pytest.raises(ValueError, match="a static cache is not supported"):
        model.generate(ids, max_new_tokens=2, cache_implementation="static")


@pytest.mark.parametrize("context", ["causal", "seed"])
def test_a_cache_that_another_model_filled_is_refused(context):
    model, ids = model_of("llama", context, "once"), three_texts("llama")
    foreign = tiny_seed("llama")(input_ids=ids, use_cache=True).cache
    with pytest.raises(ValueError, match="another model filled it"):
        model(input_ids=ids[:, :1], cache=foreign)


def test_a_prompt_longer_than_the_first_pass_is_refused():
    with pytest.raises(ValueError, match="prompt_length = 20, but the first pass holds fewer tokens"):
        model_of("llama", "seed", "once")(input_ids=three_texts("llama"), prompt_length=20)


def test_a_mask_that_leaves_out_the_cached_tokens_is_refused():
    model, ids = model_of("llama", "causal", "once"), three_texts("llama")
    cache = model(input_ids=ids, use_cache=True).cache
    with pytest.raises(ValueError, match=r"has shape \(3, 1\), expected \(3, 13\)"):
        model(input_ids=ids[:, :1], cache=cache, attention_mask=torch.ones(3, 1))


def gradients_of(model, batch, labels):
    model.zero_grad()
    output = model(**batch, output_routing=True)
    answer = output.last_hidden_state if labels is None else output.logits
    loss = answer.square().mean() if labels is None else model(**batch, labels=labels).loss
    supervised = sum(routing.supervised_logits.square().mean() for routing in output.routings.values())
    (loss + answer.mean() + supervised).backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "family", [family for family in TEXTS if family not in ("mistral", "qwen2", "gemma", "roberta")]
)
@pytest.mark.parametrize(("decide", "seed_context"), [("once", False), ("every-layer", False), ("every-layer", True)])
def test_gradient_checkpointing_gives_the_same_loss_and_gradients(family, decide, seed_context):
    context = {"context": "seed"} if seed_context else {}
    model = tiny_unified(tiny_seed(family), noise=0.1, steepness=3.0, decide=decide, **context).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batch = tiny_inputs(family, [6, 9, 4])
    labels = batch["input_ids"] if family in DECODERS else None
    expected_loss, expected = gradients_of(model, batch, labels)
    model.activation_checkpointing_enable()
    replayed = []
    first = next(iter(model.routers.values()))
    first.register_forward_pre_hook(lambda *_: replayed.append(1))
    loss, found = gradients_of(model, batch, labels)
    assert len(replayed) > (2 if labels is not None else 1), "no layer was run again"
    assert torch.equal(loss, expected_loss)
    assert found.keys() == expected.keys()
    assert any(".router.weight" in name and found[name].abs().max() > 0 for name in found)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    model.activation_checkpointing_disable()
    assert torch.equal(gradients_of(model, batch, labels)[0], expected_loss)


def test_layers_are_replayed_in_another_thread_too():
    """On a GPU the backward pass has threads of its own, which know nothing of the forward pass."""
    model, batch = tiny_unified(tiny_seed("llama"), noise=0.1, steepness=3.0).train(), tiny_inputs("llama", [6, 9, 4])
    model(**batch).logits.square().mean().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.activation_checkpointing_enable()
    loss = model(**batch).logits.square().mean()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-6) for name, gradient in expected.items())


def test_reentrant_checkpointing_is_refused():
    model = tiny_unified(tiny_seed("llama"))
    with pytest.raises(ValueError, match="needs use_reentrant=False"):
        model.activation_checkpointing_enable({"use_reentrant": True})


def test_a_copy_of_a_checkpointing_model_trains_too():
    model = copy.deepcopy(tiny_unified(tiny_seed("llama"), noise=0.1).train())
    model.activation_checkpointing_enable()
    batch = tiny_inputs("llama", [6, 9])
    _, expected = gradients_of(model, batch, batch["input_ids"])
    _, found = gradients_of(copy.deepcopy(model), batch, batch["input_ids"])
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
