"""Examples with choices of their own: every form that the hub's data sets use, in every format, and every fault."""

import csv
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collegium.core.errors import DataError, RecipeError
from collegium.core.recipe import Columns, Limits
from collegium.data import sources
from collegium.data.examples import Examples, load_splits, load_texts, load_unlabelled
from collegium.data.split import carve, drop_duplicates, sample

KEYS = ["A", "B", "C"]
ANSWERS = [["barn", "sea", "moon"], ["hull", "leaf", "hoof"], ["to eat", "to sail", "to rest"], ["in", "on", "under"]]
RIGHT = [0, 1, 2, 1]


def commonsense() -> list[dict]:
    return [
        {
            "id": str(row),
            "question": f"question {row}?",
            "question_concept": "cow",
            "choices": {"label": KEYS, "text": texts},
            "answerKey": KEYS[right],
        }
        for row, (texts, right) in enumerate(zip(ANSWERS, RIGHT, strict=True))
    ]


def cosmos() -> list[dict]:
    return [
        {
            "id": str(row),
            "context": f"A story {row}.",
            "question": "Why?",
            **{f"answer{place}": text for place, text in enumerate(texts)},
            "label": right,
        }
        for row, (texts, right) in enumerate(zip(ANSWERS, RIGHT, strict=True))
    ]


def social() -> list[dict]:
    return [
        {
            "context": f"Lee sat {row}.",
            "question": "Why?",
            **dict(zip(("answerA", "answerB", "answerC"), texts, strict=True)),
            "label": str(right + 1),
        }
        for row, (texts, right) in enumerate(zip(ANSWERS, RIGHT, strict=True))
    ]


SHAPES = {
    "commonsense": (commonsense, Columns(text="question", choices="choices", label="answerKey")),
    "cosmos": (cosmos, Columns(text=["context", "question"], choices=["answer0", "answer1", "answer2"])),
    "social": (
        social,
        Columns(text=["context", "question"], choices=["answerA", "answerB", "answerC"], first_choice=1),
    ),
}


def write(folder, rows, suffix):
    path = folder / f"rows{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == ".json":
        path.write_text(json.dumps(rows))
    elif suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_read_from_every_format(shape, suffix, tmp_path):
    make, columns = SHAPES[shape]
    if (shape, suffix) == ("commonsense", ".csv"):
        pytest.skip("a CSV cell holds no list")
    examples = load_texts(write(tmp_path, make(), suffix), columns, None, 0)
    assert examples.choices == ANSWERS
    assert examples.labels == [texts[right] for texts, right in zip(ANSWERS, RIGHT, strict=True)]
    assert examples.class_names == []
    assert (
        examples.texts[0]
        == {
            "commonsense": "question 0?",
            "cosmos": "A story 0.\nWhy?",
            "social": "Lee sat 0.\nWhy?",
        }[shape]
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_read_from_the_hub(shape, monkeypatch):
    make, columns = SHAPES[shape]
    table = datasets.Dataset.from_list(make())
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: datasets.DatasetDict({"train": table}))
    (found,) = sources.read_source("owner/name", columns)["train"]
    assert found.choices is not None
    assert load_texts("owner/name", columns, None, 0).choices == ANSWERS


def test_empty_cells_of_several_columns_are_left_out(tmp_path):
    rows = [{"instruction": "Say.", "input": "", "output": "a"}, {"instruction": "Add.", "input": "1", "output": "b"}]
    columns = Columns(text=["instruction", "input"], label="output")
    assert list(load_texts(write(tmp_path, rows, ".jsonl"), columns, None, 0).texts) == ["Say.", "Add.\n1"]
    rows = [{"instruction": " ", "input": None, "output": "a"}, {"instruction": "x", "input": 5, "output": "a"}]
    with pytest.raises(DataError) as raised:
        load_texts(write(tmp_path, rows, ".jsonl"), columns, None, 0)
    assert "row 1: the text is empty" in str(raised.value)
    assert "row 2: the text is no string but int" in str(raised.value)


@pytest.mark.parametrize(
    ("label", "choices", "right"),
    [
        ("sea", ["barn", "sea"], "sea"),
        (" sea ", ["barn", "sea "], "sea"),
        ("B", ["barn", "sea"], "sea"),
        (1, ["barn", "sea"], "sea"),
        (1.0, ["barn", "sea"], "sea"),
        ("0", ["barn", "sea"], "barn"),
        (1, ["1", "2"], "2"),  # a number is a place, whatever the choices say
        ("0", ["0", "1"], "0"),  # both meanings agree
        ("x", {"label": ["w", "x"], "text": ["barn", "x"]}, "x"),
        ("w", {"label": ["w", "x"], "text": ["x", "w"]}, "x"),  # keys before texts
        (2, {"label": ["1", "2"], "text": ["barn", "sea"]}, "sea"),
    ],
)
def test_the_label_names_a_choice(label, choices, right, tmp_path):
    path = write(tmp_path, [{"text": "t", "choices": choices, "label": label}], ".jsonl")
    assert load_texts(path, Columns(choices="choices"), None, 0).labels == [right]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"label": "lake", "choices": ["barn", "sea"]}, "none of the 2 choices"),
        ({"label": 2, "choices": ["barn", "sea"]}, "none of the 2 choices"),
        ({"label": -1, "choices": ["barn", "sea"]}, "none of the 2 choices"),
        ({"label": "-1", "choices": ["barn", "sea"]}, "none of the 2 choices"),
        ({"label": "C", "choices": ["barn", "sea"]}, "none of the 2 choices"),
        ({"label": 0, "choices": {"label": ["A", "B"], "text": ["barn", "sea"]}}, "no key and no text"),
        ({"label": "1", "choices": ["1", "0"]}, "the text of one choice, and the letter or number of another"),
        ({"label": "A", "choices": ["B", "A"]}, "the text of one choice, and the letter or number of another"),
        ({"label": "", "choices": ["barn", "sea"]}, "the label is missing"),
        ({"label": "A", "choices": ["barn"]}, "there is 1 choice"),
        ({"label": "A", "choices": []}, "there are no choices"),
        ({"label": "A", "choices": None}, "the choices are missing"),
        ({"label": "A"}, "the choices are missing"),
        ({"label": "A", "choices": "barn, sea"}, "no list but str"),
        ({"label": "A", "choices": ["barn", "sea", "barn "]}, "choice 3 is the same as choice 1"),
        ({"label": "A", "choices": ["barn", ""]}, "choice 2 is missing"),
        ({"label": "A", "choices": ["barn", ["sea"]]}, "choice 2 is missing or no text"),
        ({"label": "A", "choices": {"text": ["barn", "sea"]}}, "no {label"),
        ({"label": "A", "choices": {"label": ["A"], "text": ["barn", "sea"]}}, "2 choices with 1 keys"),
        ({"label": "A", "choices": {"label": ["A", "A"], "text": ["barn", "sea"]}}, "key of choice 2 is the same"),
    ],
)
def test_every_fault_names_file_row_and_reason(row, reason, tmp_path):
    good = {"text": "t", "label": "A", "choices": ["secret", "other"]}
    path = write(tmp_path, [good, {"text": "u", **row}], ".jsonl")
    with pytest.raises(DataError) as raised:
        load_texts(path, Columns(choices="choices"), None, 0)
    assert f"{path}, row 2: " in str(raised.value)
    assert reason in str(raised.value)
    assert "barn" not in str(raised.value)  # rows are private


def test_a_missing_column_of_choices_is_named(tmp_path):
    for suffix in (".jsonl", ".csv", ".parquet"):
        path = write(tmp_path, cosmos(), suffix)
        with pytest.raises(DataError, match=r"no column 'answer9' for the choices"):
            load_texts(path, Columns(text="context", choices=["answer0", "answer9"]), None, 0)
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match="texts without choices"):
        load_unlabelled(str(tmp_path / "lines.txt"), Columns(choices="choices", label=None))


def test_questions_need_no_label(tmp_path):
    path = write(tmp_path, commonsense(), ".jsonl")
    examples, places = load_unlabelled(path, Columns(text="question", choices="choices", label=None))
    assert (examples.labels, examples.choices, list(places)) == (None, ANSWERS, [1, 2, 3, 4])


def test_splits_keep_choices_and_have_no_classes(tmp_path):
    rows = [{"text": f"text {row}", "choices": [f"yes {row}", f"no {row}"], "label": "A"} for row in range(40)]
    rows.append({"text": "text 3", "choices": ["yes", "no"], "label": "B"})
    columns, path = Columns(choices="choices"), write(tmp_path, rows, ".jsonl")
    splits = load_splits(path, columns, Limits(train=10), 0, "owner")
    assert len(splits.train) == 10  # far fewer than there are answers
    for part in (splits.train, splits.validation, splits.test):
        assert all(label in own for label, own in zip(part.labels, part.choices, strict=True))
        for text, own in zip(part.texts, part.choices, strict=True):
            assert own in (["yes", "no"], [f"yes {text.split()[1]}", f"no {text.split()[1]}"])
    texts = [set(part.texts) for part in (splits.train, splits.validation, splits.test)]
    assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]


def test_parts_of_examples_keep_their_choices():
    examples = Examples(["a", "b", "c"] * 10, ["x"] * 30, [[f"{row}", "x"] for row in range(30)])
    parts = carve(examples, ["test"], np.random.default_rng(0))
    assert sorted(own[0] for part in parts.values() for own in part.choices) == sorted(str(row) for row in range(30))
    assert len(sample(examples, 7, np.random.default_rng(0)).choices) == 7
    assert len(drop_duplicates({"train": examples.take([0]), "test": examples})["test"].choices) == 20


def test_a_sample_of_answers_is_no_beginning_of_the_alphabet():
    examples = Examples([f"text {row}" for row in range(1000)], [f"answer {row:04}" for row in range(1000)])
    drawn = sample(examples, 100, np.random.default_rng(0))
    assert max(drawn.labels) > "answer 0900"


def test_choices_fit_their_task():
    columns = Columns(choices="choices")
    assert columns.of_task("causal-choice") == columns
    assert columns.of_task("causal-text").choices is None
    with pytest.raises(RecipeError, match=r"columns\.choices does not fit"):
        columns.of_task("label-matching")
    with pytest.raises(ValueError, match="choices are for texts"):
        Columns(choices="choices", image="photo")
