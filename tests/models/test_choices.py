"""Likelihoods of answers: as the model gives them without a cache, without padding, one by one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from collegium.core.errors import InputError, RunError
from collegium.core.router_settings import RouterSettings
from collegium.models.choices import Choices, choice_log_likelihoods
from collegium.models.encoder import Encoder
from collegium.models.expert_tensors import ffn_tensors
from collegium.models.prompts import answer_ids, prompt_ids
from collegium.unify.merge import unified_model

TEXTS = ["the old cow", "hull mast keel sail near far the a", "wheat", "one two three tide", "a pig here"] * 5
TEMPLATE = "{text}\nAnswer: {label}"
CHOICES = ["animal", "ship sea", "a plant"]


def one_by_one(encoder: Encoder, template: str, text: str, answer: str, longest: int) -> float:
    prompt, own = (
        prompt_ids(encoder.tokenizer, template, text, longest),
        answer_ids(encoder.tokenizer, template, answer),
    )
    with torch.inference_mode():
        likely = encoder.model(input_ids=torch.tensor([prompt + own])).logits[0].log_softmax(dim=-1)
    return sum(float(likely[len(prompt) - 1 + place, token]) for place, token in enumerate(own))


@pytest.fixture(scope="module", params=["seed", "causal", "token", "two experts"])
def model(request, decoder):
    if request.param == "seed":
        return decoder
    layers = [1, 2]
    generator = torch.Generator().manual_seed(0)
    experts = {
        name: {
            key: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
            for key, tensor in ffn_tensors(decoder, layers).items()
        }
        for name in ("farm", "port")
    }
    options = {"context": "token"} if request.param == "token" else {"context": "causal"}
    router = RouterSettings(**options, experts_per_token=2 if request.param == "two experts" else 1)
    unified = unified_model(decoder, experts, layers, router)
    for one in unified.routers.values():
        one.weight.data.normal_(generator=generator)
        one.context_weight.data.fill_(0.5)
    return replace(decoder, model=unified)


def test_likelihoods_are_those_without_cache_padding_and_batches(model):
    found = choice_log_likelihoods(model, TEMPLATE, TEXTS, [CHOICES] * len(TEXTS))
    longest = model.max_length - 3  # two words and the end token
    expected = [[one_by_one(model, TEMPLATE, text, answer, longest) for answer in CHOICES] for text in TEXTS]
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-4)


def test_each_item_may_have_choices_of_its_own(model):
    choices = [CHOICES[: 1 + index % 3] for index in range(len(TEXTS))]
    found = choice_log_likelihoods(model, TEMPLATE, TEXTS, choices)
    together = np.stack(choice_log_likelihoods(model, TEMPLATE, TEXTS, [CHOICES] * len(TEXTS)))
    for row, values in enumerate(found):
        np.testing.assert_allclose(values, together[row, : len(choices[row])], atol=1e-4)


def test_the_likelihoods_of_all_answers_of_one_token_sum_to_at_most_one(decoder):
    words = [word for word, index in decoder.tokenizer.get_vocab().items() if index > 5]
    (values,) = choice_log_likelihoods(decoder, TEMPLATE, ["the cow"], [words])
    assert 0 < np.exp(values.astype(np.float64)).sum() <= 1


def test_an_answer_and_a_longer_one_are_two_events(decoder):
    (values,) = choice_log_likelihoods(decoder, TEMPLATE, ["the cow"], [["ship", "ship sea"]])
    ids = [answer_ids(decoder.tokenizer, TEMPLATE, answer) for answer in ("ship", "ship sea")]
    assert all(own[-1] == decoder.tokenizer.eos_token_id for own in ids)
    assert [len(own) for own in ids] == [2, 3]
    assert values[0] != values[1]


def test_classes_with_other_prompts_are_scored_after_their_own(decoder):
    prompts = {"farm": TEMPLATE, "port": "the {text} here : {label}"}
    classes = Choices((("farm", "animal"), ("port", "ship"), ("farm", "plant")), prompts)
    found = classes.logits(decoder, TEXTS[:3])
    for column, (domain, label) in enumerate(classes.names):
        longest = decoder.max_length - 2
        expected = [one_by_one(decoder, prompts[domain], text, label, longest) for text in TEXTS[:3]]
        np.testing.assert_allclose(found[:, column], expected, atol=1e-4)


def test_classes_are_taken_and_joined_with_their_prompts():
    farm = Choices((("farm", "animal"), ("farm", "plant")), {"farm": TEMPLATE})
    port = Choices((("port", "ship"),), {"port": "{text} {label}"})
    both = farm + port
    assert both.of("port") == [2]
    assert both.take([2]) == port
    assert both.take([0, 1]) == farm


def test_a_text_is_cut_and_never_the_question(decoder):
    ids = prompt_ids(decoder.tokenizer, TEMPLATE, "cow " * 50, 10)
    assert len(ids) == 10
    question = decoder.tokenizer("Answer:", add_special_tokens=False)["input_ids"]
    assert ids[-2:] == question
    assert ids[0] == decoder.tokenizer.bos_token_id
    assert ids.count(decoder.tokenizer.bos_token_id) == 1


def test_a_prompt_that_leaves_no_room_is_refused(decoder):
    with pytest.raises(InputError, match="leaves no room"):
        prompt_ids(decoder.tokenizer, "{text} the cow " + "here " * 30 + "{label}", "a pig", 20)


def test_a_model_of_nan_is_named(decoder):
    broken = replace(decoder, model=type(decoder.model)(decoder.model.config))
    for parameter in broken.model.parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(RunError, match="not a number"):
        choice_log_likelihoods(broken, TEMPLATE, ["the cow"], [["ship"]])
