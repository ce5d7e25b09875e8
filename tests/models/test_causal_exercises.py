"""What decoders learn from: answers alone, whole texts, the seed's predictions; every item weighs the same."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from collegium.models.causal_exercises import answered, whole_texts
from collegium.models.encoder import model_inputs

TEMPLATE = "{text}\nAnswer: {label}"
TEXTS = ["the old cow", "hull mast keel sail near far the a", "wheat"]


def output_of(model, exercises, rows=None):
    batch = exercises.collate(list(range(len(exercises))) if rows is None else rows)
    return model(**model_inputs(batch)), batch


def by_hand(model, ids: list[int], first: int) -> float:
    """Mean negative log-likelihood of the tokens from `first` on."""
    likely = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    return -sum(float(likely[place - 1, ids[place]]) for place in range(first, len(ids))) / (len(ids) - first)


def test_only_the_answer_is_learnt(decoder):
    exercises = answered(decoder, TEMPLATE, TEXTS, ["animal", "ship sea", "plant"])
    output, batch = output_of(decoder.model, exercises)
    expected = np.mean([by_hand(decoder.model, lesson.ids, lesson.prompt) for lesson in exercises.lessons])
    assert float(exercises.loss(output, batch)) == pytest.approx(expected, abs=1e-5)
    counts = batch["learnt"].sum(dim=1).tolist()
    assert counts == [2, 3, 2]  # the words and the end token


def test_all_of_a_text_but_its_first_token_is_learnt(decoder):
    exercises = whole_texts(decoder, TEXTS, distilled=False)
    output, batch = output_of(decoder.model, exercises)
    expected = np.mean([by_hand(decoder.model, lesson.ids, 1) for lesson in exercises.lessons])
    assert float(exercises.loss(output, batch)) == pytest.approx(expected, abs=1e-5)


def test_the_seed_itself_has_nothing_to_learn_from_its_own_predictions(decoder):
    exercises = whole_texts(decoder, TEXTS, distilled=True)
    output, batch = output_of(decoder.model, exercises)
    assert float(exercises.loss(output, batch)) == pytest.approx(0, abs=1e-6)
    given, right = exercises.answers(decoder.model)
    np.testing.assert_array_equal(given, right)
    assert len(given) == sum(len(lesson.ids) - 1 for lesson in exercises.lessons)


def test_distillation_is_the_divergence_from_the_seed(decoder):
    exercises = whole_texts(decoder, TEXTS, distilled=True)
    batch = exercises.collate([0, 1, 2])
    logits = torch.randn(*batch["input_ids"].shape, decoder.model.config.vocab_size)
    per_item = []
    for row, lesson in enumerate(exercises.lessons):
        seeds = decoder.model(input_ids=torch.tensor([lesson.ids])).logits[0, :-1].log_softmax(dim=-1)
        own = logits[row, : len(lesson.ids) - 1].log_softmax(dim=-1)
        kl = torch.nn.functional.kl_div(own, seeds, log_target=True, reduction="none").sum(dim=-1)
        per_item.append(float(kl.mean()))
    found = exercises.loss(SimpleNamespace(logits=logits), batch)
    assert float(found) == pytest.approx(np.mean(per_item), abs=1e-5)


def test_padding_and_batch_mates_do_not_enter_the_loss(decoder):
    exercises = answered(decoder, TEMPLATE, TEXTS[:2], ["animal", "ship"]) + whole_texts(decoder, TEXTS, distilled=True)
    rows = list(range(len(exercises)))
    together = exercises.loss(*output_of(decoder.model, exercises, rows))
    alone = [exercises.loss(*output_of(decoder.model, exercises, [row])) for row in rows]
    assert float(together) == pytest.approx(float(torch.stack(alone).mean()), abs=1e-5)


def test_right_answers_are_the_texts_own_tokens(decoder):
    exercises = answered(decoder, TEMPLATE, TEXTS, ["animal", "ship sea", "plant"])
    order = sorted(range(3), key=lambda row: (len(exercises.lessons[row].ids), row))
    _, right = exercises.answers(decoder.model)
    expected = [token for row in order for token in exercises.lessons[row].ids[exercises.lessons[row].prompt :]]
    assert right.tolist() == expected


def test_a_long_answer_is_cut_and_leaves_room_for_its_text(decoder):
    exercises = answered(decoder, TEMPLATE, ["cow " * 40], ["sea " * 40])
    (lesson,) = exercises.lessons
    assert len(lesson.ids) == decoder.max_length
    assert len(lesson.ids) - lesson.prompt == decoder.max_length // 2


def test_a_text_of_one_token_teaches_nothing_and_breaks_nothing(decoder):
    exercises = whole_texts(decoder, ["wheat"], distilled=False)
    short = exercises.take([0])
    object.__setattr__(short.lessons[0], "ids", short.lessons[0].ids[:1])
    output, batch = output_of(decoder.model, short)
    assert float(short.loss(output, batch)) == 0


def test_exercises_are_joined_and_taken(decoder):
    both = whole_texts(decoder, TEXTS[:1], distilled=True) + answered(decoder, TEMPLATE, TEXTS[1:], ["ship", "plant"])
    assert both.items == TEXTS
    assert [lesson.distilled for lesson in both.lessons] == [True, False, False]
    assert both.take([2, 0]).items == [TEXTS[2], TEXTS[0]]
