"""Whatever is wrong with data is one DataError that names file, row and reason, and quotes no content."""

import json
from contextlib import suppress
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collegium.core.errors import DataError
from collegium.core.recipe import Columns, Limits
from collegium.data.examples import load_splits, load_texts

GOOD = [{"text": f"good text {i}", "label": "ab"[i % 2]} for i in range(12)]


def fault(data, columns: Columns | None = None, limits: Limits | None = None) -> str:
    with pytest.raises(DataError) as caught:
        load_splits(data, columns or Columns(), limits or Limits(), random_seed=0, name="owner")
    assert caught.value.exit_code == 2
    return str(caught.value)


def lines(path: Path, *records: object) -> str:
    encoded = (r if isinstance(r, bytes) else json.dumps(r).encode() for r in records)
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return str(path)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "", "label": "a"}, "the text is empty"),
        ({"text": " \n\t", "label": "a"}, "the text is empty"),
        ({"text": None, "label": "a"}, "the text is missing"),
        ({"label": "a"}, "the text is missing"),
        ({"text": float("nan"), "label": "a"}, "the text is missing"),
        ({"text": 17, "label": "a"}, "the text is no string but int"),
        ({"text": ["x"], "label": "a"}, "the text is no string but list"),
        ({"text": "secret", "label": None}, "the label is missing"),
        ({"text": "secret", "label": ""}, "the label is missing"),
        ({"text": "secret", "label": float("nan")}, "the label is missing"),
        ({"text": "secret"}, "the label is missing"),
        ({"text": "secret", "label": ["a", "b"]}, "the label is no name but list"),
        (b'{"text": "secret", "label": "a"', "malformed JSON"),
        (b'["text", "label"]', "no JSON object"),
        (b'{"text": "secret \xff\xfe", "label": "a"}', "the text is no valid UTF-8"),
        (b'{"text": "secret \\ud83d", "label": "a"}', "the text is no valid UTF-8"),
        (b'{"text": "secret", "label": "\xff"}', "the label is no valid UTF-8"),
        (b'{"text": ' + b"[" * 100_000, "malformed JSON"),
    ],
)
def test_a_faulty_json_line_is_named(tmp_path, record, reason):
    data = lines(tmp_path / "data.jsonl", *GOOD[:4], record, *GOOD[4:])
    message = fault(data)
    assert f"{data}, row 5: " in message
    assert reason in message
    assert "1 row is at fault" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b",a", "the text is empty"),
        (b"secret,", "the label is missing"),
        (b"secret,nan", "the label is missing"),
        (b"secret, with a comma,a", "3 fields where the header has 2"),
        (b"secret", "1 fields where the header has 2"),
        (b"secret \xe9,a", "the text is no valid UTF-8"),
        (b'"secret" oops,a', "malformed"),
        (b'"secret', "malformed"),
    ],
)
def test_a_faulty_csv_record_is_named(tmp_path, row, reason):
    data = tmp_path / "data.csv"
    data.write_bytes(b'text,label\n"two\nlines",a\ngood,b\n\n' + row + b"\n")
    message = fault(str(data))
    assert f"{data}, row 3: " in message
    assert reason in message
    assert "secret" not in message


def test_a_faulty_parquet_row_is_named(tmp_path):
    broken = pyarrow.array([b"good", b"\xff", b"good"]).cast(pyarrow.binary())
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 3, broken.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": ["a", "b", None]}), tmp_path / "data.parquet")
    message = fault(str(tmp_path / "data.parquet"))
    assert "row 2: the text is no valid UTF-8" in message
    assert "row 3: the label is missing" in message
    pandas.DataFrame({"text": ["x", "y"], "label": [1.0, None]}).to_parquet(tmp_path / "gap.parquet")
    assert "row 2: the label is missing" in fault(str(tmp_path / "gap.parquet"))
    (tmp_path / "no.parquet").write_bytes(b"PAR1 nothing")
    assert "no intact Parquet file" in fault(str(tmp_path / "no.parquet"))


def test_a_faulty_text_file_is_named(tmp_path):
    for name, content in {
        "a/1.txt": b"fine",
        "a/2.txt": b" ",
        "b/3.txt": b"\xff",
        "b/4.txt": b"fine",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    message = fault(str(tmp_path))
    assert f"{tmp_path}, a/2.txt: the text is empty" in message
    assert f"{tmp_path}, b/3.txt: the text is no valid UTF-8" in message


def test_five_faults_of_all_files_are_listed_and_all_are_counted(tmp_path):
    lines(tmp_path / "train-1.jsonl", *GOOD, *[{"text": "", "label": "a"}] * 3)
    lines(tmp_path / "train-2.jsonl", *GOOD, *[{"text": "x", "label": ""}] * 6)
    message = fault(str(tmp_path))
    assert "9 rows are at fault" in message
    assert message.count(", row ") == 5
    assert "train-1.jsonl, row 15" in message
    assert "train-2.jsonl, row 14" in message
    assert "… and 4 more" in message


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("column", ["text", "label"])
def test_a_missing_column_is_named_with_those_that_are_there(tmp_path, kind, column):
    table = pandas.DataFrame(GOOD).rename(columns={column: "other"})
    data = tmp_path / f"data.{kind}"
    if kind == "jsonl":
        table.to_json(data, orient="records", lines=True)
    elif kind == "csv":
        table.to_csv(data, index=False)
    else:
        table.to_parquet(data)
    message = fault(str(data))
    assert str(data) in message
    assert f"no column '{column}'" in message
    assert "other" in message
    assert f"columns.{column}=" in message


def test_a_class_outside_of_the_training_split_is_named_with_its_file(tmp_path):
    train = lines(tmp_path / "train.jsonl", *GOOD)
    extra = {"text": "another", "label": "Health"}
    for split in ("validation", "test"):
        other = lines(tmp_path / f"{split}.jsonl", extra)
        message = fault({"train": train, split: other})
        assert other in message
        assert f"the {split} split has classes" in message
        assert "'Health'" in message


def test_one_class_alone_is_refused(tmp_path):
    data = lines(tmp_path / "data.jsonl", *[{"text": f"text {i}", "label": "a"} for i in range(9)])
    message = fault(data)
    assert "one class alone" in message
    assert data in message


def test_splits_without_examples_are_refused(tmp_path):
    few = lines(tmp_path / "few.jsonl", *GOOD[:2])
    assert "too few examples to carve" in fault(few)
    train = lines(tmp_path / "train.jsonl", *GOOD)
    assert "all its texts stand in an earlier split" in fault({"train": train, "test": train})
    empty = lines(tmp_path / "empty.jsonl")
    assert "holds no rows" in fault(empty)
    (tmp_path / "header.csv").write_text("text,label\n", encoding="utf-8")
    assert "holds no rows" in fault(str(tmp_path / "header.csv"))


def test_a_limit_below_the_number_of_classes_is_refused(tmp_path):
    data = lines(tmp_path / "data.jsonl", *GOOD)
    assert "limits.train" in fault(data, limits=Limits(train=1))


def test_a_name_that_stands_for_nothing_says_what_there_is(tmp_path):
    message = fault("wordnett")
    assert "no file or folder has this path" in message
    assert "bbc, rotten-tomatoes, imdb, wordnet, docstrings" in message
    assert "did you mean wordnet?" in message
    assert "needs network access" in message
    assert "needs network access" in fault(str(tmp_path / "gone.csv"))
    assert "needs network access" in fault("data/gone.csv")


def test_folders_that_mix_layouts_are_refused(tmp_path):
    assert "an empty folder" in fault(str(tmp_path))
    lines(tmp_path / "train.jsonl", *GOOD)
    lines(tmp_path / "more.jsonl", *GOOD)
    assert f"{tmp_path / 'more.jsonl'} tells no split" in fault(str(tmp_path))
    (tmp_path / "folder").mkdir()
    assert "mixes files and folders" in fault(str(tmp_path))
    classes = tmp_path / "folder" / "classes"
    (classes / "a").mkdir(parents=True)
    lines(classes / "a" / "scan.pdf", GOOD[0])
    assert "scan.pdf is no text file" in fault(str(classes))
    (tmp_path / "only").mkdir()
    lines(tmp_path / "only" / "test.jsonl", *GOOD)
    assert "no training examples" in fault(str(tmp_path / "only"))


def test_other_kinds_and_encodings_are_refused(tmp_path):
    (tmp_path / "data.xlsx").write_bytes(b"PK")
    assert ".xlsx" in fault(str(tmp_path / "data.xlsx"))
    (tmp_path / "data.csv").write_bytes("text,label\n".encode("utf-16"))
    assert "UTF-16" in fault(str(tmp_path / "data.csv"))
    (tmp_path / "twice.csv").write_text("text,text,label\nx,y,z\n", encoding="utf-8")
    assert "more than one column 'text'" in fault(str(tmp_path / "twice.csv"))
    (tmp_path / "broken.json").write_text('[{"text": "a"},', encoding="utf-8")
    assert "no valid JSON" in fault(str(tmp_path / "broken.json"))
    (tmp_path / "texts.txt").write_text("one\ntwo\n", encoding="utf-8")
    assert "texts without labels" in fault(str(tmp_path / "texts.txt"))


def test_a_pool_has_no_faulty_rows_either(tmp_path):
    data = lines(tmp_path / "pool.jsonl", {"text": "fine"}, {"text": ""})
    with pytest.raises(DataError, match="row 2: the text is empty"):
        load_texts(data, Columns(), None, 0)


@given(content=st.binary(max_size=300), kind=st.sampled_from(["jsonl", "json", "csv", "tsv", "parquet", "txt"]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused_with_a_data_error(tmp_path, content, kind):
    path = tmp_path / f"any.{kind}"
    path.write_bytes(b"text,label\n" + content if kind == "csv" else content)
    for columns in (Columns(), Columns(label=None)):
        with suppress(DataError):
            splits = load_splits(str(path), columns, Limits(), random_seed=0, name="owner")
            assert all(text.strip().encode("utf-8") for text in splits.train.texts)
