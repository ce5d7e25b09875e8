"""Every supported layout gives the same examples; columns are mapped; splits and limits are honoured."""

import json
from pathlib import Path
from types import SimpleNamespace

import datasets
import pandas
import pytest

from collegium.core.errors import DataError
from collegium.core.recipe import Columns, Limits
from collegium.data.examples import Examples, Splits, load_splits, load_texts

ROWS = [(f"report {i} on {topic}", topic) for i in range(20) for topic in ("banking", "health")]


def load(data, columns: Columns | None = None, limits: Limits | None = None, seed: int = 0) -> Splits:
    return load_splits(data, columns or Columns(), limits or Limits(), random_seed=seed, name="owner")


def rows_of(*parts: Examples) -> list[tuple[str, str]]:
    return sorted((text, label) for part in parts for text, label in zip(part.texts, part.labels or [], strict=True))


def frame(rows: list[tuple[str, str]]) -> pandas.DataFrame:
    return pandas.DataFrame(rows, columns=["text", "label"])


def write(path: Path, rows: list[tuple[str, str]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps({"text": t, "label": c}) + "\n" for t, c in rows), encoding="utf-8")
        case ".json":
            path.write_text(json.dumps([{"text": t, "label": c} for t, c in rows]), encoding="utf-8")
        case ".csv":
            frame(rows).to_csv(path, index=False)
        case ".tsv":
            frame(rows).to_csv(path, index=False, sep="\t")
        case ".parquet":
            frame(rows).to_parquet(path)
    return str(path)


def test_one_file_of_each_format_gives_the_same_splits(tmp_path):
    awkward = [('a "quoted", long\nreport, ünïcode', "banking"), *ROWS]
    loaded = [load(write(tmp_path / f"data.{kind}", awkward)) for kind in ("jsonl", "json", "csv", "tsv", "parquet")]
    assert all(splits == loaded[0] for splits in loaded)
    assert rows_of(loaded[0].train, loaded[0].validation, loaded[0].test) == sorted(awkward)


def test_a_json_file_with_one_object_a_line_and_a_byte_order_mark_is_read(tmp_path):
    lines = "\r\n".join(json.dumps({"text": t, "label": c}) for t, c in ROWS) + "\r\n\r\n"
    (tmp_path / "data.json").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    splits = load(str(tmp_path / "data.json"))
    assert rows_of(splits.train, splits.validation, splits.test) == sorted(ROWS)


def test_a_folder_of_classes_is_labelled_by_its_folders(tmp_path):
    for i, (text, label) in enumerate(ROWS):
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / f"{i:03}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "README.md").write_text("about these data", encoding="utf-8")
    (tmp_path / ".DS_Store").write_bytes(b"\x00\xff")
    splits = load(str(tmp_path))
    assert rows_of(splits.train, splits.validation, splits.test) == sorted(ROWS)
    assert load(str(tmp_path), Columns(label=None)).train.labels is None


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [
        ("train.jsonl", "dev.csv", "test.parquet"),
        ("data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet", "data/test.parquet"),
        ("train/part.csv", "valid/part.csv", "test/part.csv"),
        ("reviews_train.tsv", "reviews_val.tsv", "reviews_test.tsv"),
    ],
)
def test_names_in_a_folder_tell_the_splits(tmp_path, train, validation, test):
    parts = {train: ROWS[:20], validation: ROWS[20:30], test: ROWS[30:]}
    for file, rows in parts.items():
        write(tmp_path / file, rows)
    splits = load(str(tmp_path))
    assert rows_of(splits.train) == sorted(ROWS[:20])
    assert rows_of(splits.validation) == sorted(ROWS[20:30])
    assert rows_of(splits.test) == sorted(ROWS[30:])


def test_classes_inside_of_split_folders(tmp_path):
    for split, rows in {"train": ROWS[:20], "test": ROWS[20:]}.items():
        for i, (text, label) in enumerate(rows):
            (tmp_path / split / label).mkdir(parents=True, exist_ok=True)
            (tmp_path / split / label / str(i)).write_text(text, encoding="utf-8")
    splits = load(str(tmp_path))
    assert rows_of(splits.test) == sorted(ROWS[20:])
    assert rows_of(splits.train, splits.validation) == sorted(ROWS[:20])
    assert len(splits.validation) == 4  # 15 % of 10 examples of each class, rounded


def test_a_mapping_names_a_source_for_each_split(tmp_path):
    train, test = write(tmp_path / "a.csv", ROWS[:30]), write(tmp_path / "b.jsonl", ROWS[30:])
    splits = load({"train": train, "test": test})
    assert rows_of(splits.test) == sorted(ROWS[30:])
    assert rows_of(splits.train, splits.validation) == sorted(ROWS[:30])


def test_columns_are_mapped_and_integer_labels_become_names(tmp_path):
    pandas.DataFrame({"body": [t for t, _ in ROWS], "stars": [i % 2 for i in range(40)]}).to_parquet(
        tmp_path / "d.parquet"
    )
    columns = Columns(text="body", label="stars")
    assert set(load(str(tmp_path / "d.parquet"), columns).train.labels or []) == {"0", "1"}


def test_class_labels_in_parquet_become_their_names(tmp_path):
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["banking", "health"])}
    )
    columns = {"text": [t for t, _ in ROWS], "label": [c for _, c in ROWS]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "d.parquet"))
    splits = load(str(tmp_path / "d.parquet"))
    assert rows_of(splits.train, splits.validation, splits.test) == sorted(ROWS)


def test_a_hub_name_goes_through_datasets_without_remote_code(monkeypatch):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    part = datasets.Dataset.from_dict({"text": ["a", "b", "c", "d"], "label": [0, 1, 0, 1]}, features=features)
    other = datasets.Dataset.from_dict({"text": ["e", "f"], "label": [0, 1]}, features=features)
    asked = []

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return datasets.DatasetDict({"train": part, "dev": other, "test": other.select([1])})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    pool = load_texts("owner/reviews:small", Columns(), None, 0)
    assert asked == [(("owner/reviews", "small"), {})]
    assert pool.texts == ["a", "b", "c", "d", "e", "f", "f"]
    assert pool.labels == ["no", "yes", "no", "yes", "no", "yes", "yes"]


def test_an_unreachable_hub_is_a_data_error(monkeypatch):
    def load_dataset(*_):
        raise ConnectionError("no route\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match="needs network access") as caught:
        load("owner/reviews")
    assert caught.value.got == "ConnectionError: no route"
    assert not datasets.are_progress_bars_disabled()


def test_local_files_need_no_network_and_nothing_is_written_beside_them(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("network")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    write(tmp_path / "train.csv", ROWS)
    before = {p: p.stat().st_mtime_ns for p in [tmp_path, *tmp_path.rglob("*")]}
    load(str(tmp_path))
    assert before == {p: p.stat().st_mtime_ns for p in [tmp_path, *tmp_path.rglob("*")]}


def test_the_same_seed_gives_the_same_splits_and_another_seed_or_name_gives_others(tmp_path):
    data = write(tmp_path / "data.jsonl", ROWS)
    assert load(data, seed=3) == load(data, seed=3)
    assert load(data, seed=3).test != load(data, seed=4).test
    renamed = load_splits(data, Columns(), Limits(), random_seed=3, name="other")
    assert renamed.test != load(data, seed=3).test


def test_carved_splits_have_their_shares_of_each_class(tmp_path):
    rows = [(f"text {i}", "rare" if i % 10 == 0 else "common") for i in range(200)]
    splits = load(write(tmp_path / "data.csv", rows))
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [130, 30, 40]
    for part, rare in ((splits.train, 13), (splits.validation, 3), (splits.test, 4)):
        assert (part.labels or []).count("rare") == rare


def test_duplicates_stay_in_the_earlier_split_alone(tmp_path):
    train = [("one  text", "banking"), ("two", "health"), ("two", "health")]
    write(tmp_path / "train.csv", train)
    write(tmp_path / "validation.csv", [("one text", "banking"), ("three", "health")])
    write(tmp_path / "test.csv", [("two\n", "health"), ("three", "health"), ("four", "health")])
    splits = load(str(tmp_path))
    assert splits.train.texts == ["one  text", "two", "two"]
    assert splits.validation.texts == ["three"]
    assert splits.test.texts == ["four"]


def test_limits_draw_a_stratified_sample(tmp_path):
    data = write(tmp_path / "data.csv", ROWS)
    splits = load(data, limits=Limits(train=10, validation=2, test=100))
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [10, 2, 8]
    assert (splits.train.labels or []).count("health") == 5
    assert set(splits.test.texts) == set(load(data).test.texts)


def test_a_pool_is_all_splits_together_with_labels_only_where_they_are(tmp_path):
    for name, rows in {"train.csv": ROWS[:30], "test.csv": ROWS[30:]}.items():
        write(tmp_path / "named" / name, rows)
    pool = load_texts(str(tmp_path / "named"), Columns(), None, 0)
    assert rows_of(pool) == sorted(ROWS)
    (tmp_path / "texts").mkdir()
    for i, (text, _) in enumerate(ROWS):
        (tmp_path / "texts" / f"{i:02}.txt").write_text(text, encoding="utf-8")
    plain = load_texts(str(tmp_path / "texts"), Columns(), None, 0)
    assert plain == Examples([text for text, _ in ROWS], None)
    few = load_texts(str(tmp_path / "texts"), Columns(), 7, 0)
    assert few == load_texts(str(tmp_path / "texts"), Columns(), 7, 0)
    assert len(few) == 7
    assert few != load_texts(str(tmp_path / "texts"), Columns(), 7, 1)


def test_a_text_file_is_one_text_a_line(tmp_path):
    (tmp_path / "pool.txt").write_text("one\n\ntwo\r\n", encoding="utf-8")
    assert load_texts(str(tmp_path / "pool.txt"), Columns(), None, 0).texts == ["one", "two"]


def test_a_catalogue_name_is_split_like_a_file(monkeypatch):
    examples = Examples([t for t, _ in ROWS], [c for _, c in ROWS])
    named = SimpleNamespace(load=lambda: examples)
    monkeypatch.setattr("collegium.data.sources.CATALOGUE", {"tiny": named})
    splits = load("tiny")
    assert rows_of(splits.train, splits.validation, splits.test) == sorted(ROWS)
    assert load("tiny", Columns(label=None)).test.labels is None
