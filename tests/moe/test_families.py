"""Every family of the table, by the same tests: copies of the seed are the seed; saved and loaded bit for bit."""

import copy
import inspect

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageClassification, GPT2Config

from collegium.moe.architectures import ARCHITECTURES, CONTEXTS, architecture_of
from collegium.moe.modeling import UNIFIED_CLASSES, UNIFIED_MODELS, unified_config
from families import (
    CONFIGS,
    DECODERS,
    EVERY_CLASS,
    FAMILIES,
    TEXTS,
    answer,
    moe_layers,
    tiny_inputs,
    tiny_seed,
    tiny_unified,
)

LENGTHS = [3, 9, 6, 9, 4, 8, 5]
ROUNDING = 1e-5  # a matrix product over some of the rows rounds otherwise than one over all
OPTIONS = [
    (decide, context, fallback)
    for decide in ("once", "every-layer")
    for context in ("token", "whole", "seed")
    for fallback in (False, True)
    if decide == "every-layer" or not fallback
]


def own_context(family, context):
    """`whole` = the mean over all that the family may see."""
    whole = "causal" if ARCHITECTURES[family].kind == "decoder" else "sequence"
    return whole if context == "whole" else context


def only_tokens(states, batch):
    mask = batch.get("attention_mask")
    return states if mask is None or states.ndim == 2 else states[mask.bool()]


def seed_answer(seed, batch):
    """The seed's, with positions counted from the first token, as the unified model counts them."""
    if "attention_mask" in batch and seed.config.model_type not in ("roberta", "xlm-roberta"):
        batch = {**batch, "position_ids": (batch["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)}
    return answer(seed(**batch))


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def test_every_row_of_the_table_has_a_configuration_classes_and_a_tiny_seed():
    assert set(ARCHITECTURES) == set(UNIFIED_CLASSES) == set(CONFIGS)
    for family in DECODERS:
        assert len([seed for seed in UNIFIED_MODELS if seed.config_class.model_type == family]) == 2


@pytest.mark.parametrize(("family", "class_name"), EVERY_CLASS)
def test_tokens_that_all_go_to_one_copy_give_the_seed_bit_for_bit(family, class_name):
    seed, batch = tiny_seed(family, class_name), tiny_inputs(family, LENGTHS)
    for decide, context, fallback in OPTIONS:
        model = tiny_unified(seed, decide=decide, context=own_context(family, context), fallback=fallback)
        for router in model.routers.values():
            router.bias[1] = 1e4
        found, expected = answer(model(**batch)), seed_answer(seed, batch)
        assert torch.equal(only_tokens(found, batch), only_tokens(expected, batch)), (decide, context, fallback)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("side", "experts_per_token"), [("right", 1), ("left", 2)])
def test_copies_of_the_seed_are_the_seed_wherever_the_tokens_go(family, side, experts_per_token):
    seed, batch = tiny_seed(family), tiny_inputs(family, LENGTHS, side)
    expected = only_tokens(seed_answer(seed, batch), batch)
    for decide, context, fallback in OPTIONS:
        options = {"decide": decide, "context": own_context(family, context), "fallback": fallback}
        model = tiny_unified(seed, steepness=5.0, **options, experts_per_token=experts_per_token)
        output = model(**batch, output_routing=True)
        assert (only_tokens(answer(output), batch) - expected).abs().max() < ROUNDING * expected.abs().max(), options
        used = {int(expert) for routing in output.routings.values() for expert in routing.experts.flatten()}
        assert len(used) > 1, "the test needs a router that spreads tokens"


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_that_differ_give_another_answer(family):
    seed, batch = tiny_seed(family), tiny_inputs(family, LENGTHS)
    model = tiny_unified(seed, noise=0.3)
    assert (only_tokens(answer(model(**batch)) - seed_answer(seed, batch), batch)).abs().max() > 0.01


@pytest.mark.parametrize("family", TEXTS)
def test_cases_13_and_14_neither_batch_mates_nor_padding_change_an_answer(family):
    lengths = [4, 9, 2, 7]
    seed, batch = tiny_seed(family), tiny_inputs(family, lengths)
    for decide, context in (
        ("once", "whole"),
        ("every-layer", "token"),
        ("every-layer", "whole"),
        ("every-layer", "seed"),
    ):
        model = tiny_unified(seed, noise=0.1, steepness=3.0, decide=decide, context=own_context(family, context))
        together = model(**batch, output_routing=True)
        tokens = batch["attention_mask"].bool()
        scale = answer(together)[tokens].abs().max()
        for side, width in (("left", 9), ("left", 14), ("right", 14)):
            other = tiny_inputs(family, lengths, side, width)
            kept = other["attention_mask"].bool()
            output = model(**other, output_routing=True)
            assert (answer(output)[kept] - answer(together)[tokens]).abs().max() < ROUNDING * scale
            for layer, routing in output.routings.items():
                assert torch.equal(routing.experts[kept], together.routings[layer].experts[tokens])
        for row, length in enumerate(lengths):
            alone = model(input_ids=batch["input_ids"][row : row + 1, :length])
            assert (answer(alone)[0] - answer(together)[row, :length]).abs().max() < ROUNDING * scale


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in TEXTS])
def test_the_answer_for_an_image_does_not_depend_on_its_batch_mates(family):
    batch = tiny_inputs(family, [0] * 4)
    for context in CONTEXTS["vision"]:
        model = tiny_unified(tiny_seed(family), noise=0.1, steepness=3.0, decide="every-layer", context=context)
        together = model(**batch).last_hidden_state
        for row in range(4):
            alone = model(pixel_values=batch["pixel_values"][row : row + 1]).last_hidden_state
            assert (alone[0] - together[row]).abs().max() < ROUNDING * together.abs().max()


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in TEXTS])
def test_the_context_of_an_image_is_the_mean_over_all_its_patches(family):
    model, batch = tiny_unified(tiny_seed(family), noise=0.1), tiny_inputs(family, [0, 0])
    seen = {}
    layer = moe_layers(model)[0]
    layer.register_forward_pre_hook(lambda _, arguments: seen.update(z=arguments[0]))
    routing = model(**batch, output_routing=True).routings[1]
    router = layer.router
    assert seen["z"].shape[1] == 10  # CLS and 9 patches
    mixed = 0.5 * seen["z"] + 0.5 * seen["z"].mean(dim=1, keepdim=True)
    torch.testing.assert_close(
        routing.logits, (mixed - router.centre) @ router.weight.T + router.bias, atol=1e-5, rtol=0
    )
    with pytest.raises(ValueError, match="not supported for images"):
        model(**batch, attention_mask=torch.ones(2, 10))


@pytest.mark.parametrize("seed_class", UNIFIED_MODELS, ids=lambda seed_class: seed_class.__name__)
def test_forward_shows_the_arguments_of_the_seeds_and_two_more(seed_class):
    """`generate` and `Trainer` read them to know what a model takes."""
    own, unified = (set(inspect.signature(one.forward).parameters) for one in (seed_class, UNIFIED_MODELS[seed_class]))
    assert unified == own | {"output_routing", "prompt_length"}


def test_a_loss_and_a_tuple_are_the_seeds():
    for family, class_name in (("llama", "LlamaForCausalLM"), ("vit", "ViTForImageClassification")):
        seed, batch = tiny_seed(family, class_name), tiny_inputs(family, [9, 9])
        labels = batch["input_ids"] if family == "llama" else torch.tensor([1, 3])
        model = tiny_unified(seed)
        for router in model.routers.values():
            router.bias[1] = 1e4
        expected, found = seed(**batch, labels=labels), model(**batch, labels=labels)
        assert torch.equal(found.loss, expected.loss)
        as_tuple = model(**batch, labels=labels, return_dict=False)
        assert torch.equal(as_tuple[0], expected.loss)
        assert torch.equal(as_tuple[1], expected.logits)


@pytest.mark.parametrize(("family", "class_name"), EVERY_CLASS)
def test_a_model_saved_in_shards_loads_bit_for_bit(family, class_name, tmp_path):
    model = tiny_unified(tiny_seed(family, class_name), noise=0.3, fallback=True)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    auto = AutoModel
    auto = AutoModelForCausalLM if class_name.endswith("ForCausalLM") else auto
    auto = AutoModelForImageClassification if class_name.endswith("ForImageClassification") else auto
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    batch = tiny_inputs(family, LENGTHS)
    difference = answer(model(**batch)) - answer(loaded.eval()(**batch))
    assert difference.abs().max() < 1e-6 * answer(model(**batch)).abs().max()  # tensors of a file are aligned otherwise


@pytest.mark.parametrize("family", DECODERS)
def test_case_1_tied_embeddings_stay_tied(family, tmp_path):
    seed = tiny_seed(family)
    model = tiny_unified(seed)
    tied = seed.config.tie_word_embeddings
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) == tied
    assert loaded.config.tie_word_embeddings == tied


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "vit", "clip_text_model"])
def test_case_7_a_bfloat16_model_keeps_its_dtype_and_a_float32_router(family, tmp_path):
    model = tiny_unified(tiny_seed(family), noise=0.3)
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data if ".router." in name else parameter.data.bfloat16()
    model.save_pretrained(tmp_path)
    auto = AutoModelForCausalLM if family in DECODERS else AutoModel
    loaded = auto.from_pretrained(tmp_path).eval()
    assert loaded.config.dtype == torch.bfloat16
    for name, parameter in loaded.named_parameters():
        assert parameter.dtype == (torch.float32 if ".router." in name else torch.bfloat16), name
    output = loaded(**tiny_inputs(family, LENGTHS), output_routing=True)
    assert answer(output).dtype == torch.bfloat16
    assert output.routings[1].logits.dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_a_deep_copy_works_when_the_original_is_gone(family):
    model, batch = (
        tiny_unified(tiny_seed(family), noise=0.3, context=own_context(family, "whole")),
        tiny_inputs(family, LENGTHS),
    )
    expected = answer(model(**batch))
    copied = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.zero_()
    assert torch.equal(answer(copied(**batch)), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_context_that_a_family_cannot_have_is_refused(family):
    kind = ARCHITECTURES[family].kind
    for context in {"token", "sequence", "causal", "seed"} - set(CONTEXTS[kind]):
        with pytest.raises(ValueError, match=f"'{context}' is not supported in {family}.*use one of token"):
            tiny_unified(tiny_seed(family), context=context)


def test_a_family_that_is_not_supported_is_named_with_those_that_are():
    with pytest.raises(ValueError, match="'gpt2' is not supported; supported: bert, .*llama.*vit"):
        architecture_of("gpt2")
    with pytest.raises(ValueError, match="'gpt2' is not supported"):
        unified_config(GPT2Config())


@pytest.mark.parametrize(
    ("family", "option"),
    [
        ("dinov2", {"use_swiglu_ffn": True}),
        ("gemma", {"use_bidirectional_attention": True}),
        ("roberta", {"is_decoder": True}),
    ],
)
def test_what_a_family_cannot_do_here_is_refused(family, option):
    config = unified_config(CONFIGS[family], expert_names=["a"], **option)
    with pytest.raises(ValueError, match=next(iter(option))):
        UNIFIED_CLASSES[family][1](config)
