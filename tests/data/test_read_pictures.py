"""Tables, folders and hub data of pictures; a faulty one is named."""

import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from collegium.core.errors import DataError
from collegium.core.recipe import Columns, Limits
from collegium.data.examples import load_splits, load_texts, load_unlabelled
from collegium.data.images import Picture, picture_of
from tiny import draw, write_pictures

IMAGE = Columns(image="image")


def test_a_folder_for_each_class(tmp_path):
    write_pictures(tmp_path / "all", ["bag", "shoe"], 20)
    splits = load_splits(str(tmp_path / "all"), Columns(), Limits(), random_seed=0, name="clothes")
    parts = (splits.train, splits.validation, splits.test)
    assert sum(len(part) for part in parts) == 40
    assert set(splits.test.labels or []) == {"bag", "shoe"}
    hashes = [{picture.content_hash for picture in part.texts} for part in parts]
    assert not hashes[0] & hashes[2]
    assert not hashes[0] & hashes[1]


def test_splits_of_class_folders_and_a_picture_that_stands_in_two(tmp_path):
    write_pictures(tmp_path / "d" / "train", ["bag", "shoe"], 6)
    write_pictures(tmp_path / "d" / "test", ["bag", "shoe"], 4, first=5)  # number 5 is in train as well
    splits = load_splits(str(tmp_path / "d"), Columns(), Limits(), random_seed=0, name="clothes")
    assert len(splits.test) == 6
    assert not {p.content_hash for p in splits.train.texts} & {p.content_hash for p in splits.test.texts}


def test_pictures_without_classes_even_if_their_names_tell_splits(tmp_path):
    folder = write_pictures(tmp_path, ["train", "test"], 1)
    for name in ("train", "test"):
        (folder / name / "0.png").rename(folder / f"{name}_0.png")
        (folder / name).rmdir()
    examples, places = load_unlabelled(str(folder), Columns(label=None))
    assert places == ["test_0.png", "train_0.png"]
    assert all(isinstance(item, Picture) for item in examples.texts)
    one, places = load_unlabelled(str(folder / "train_0.png"), Columns(label=None))
    assert (len(one), places) == (1, ["train_0.png"])


def test_faulty_files_are_named(tmp_path):
    folder = write_pictures(tmp_path, ["bag", "shoe"], 5)
    (folder / "bag" / "3.png").write_bytes(b"no picture")
    (folder / "shoe" / "1.png").write_bytes((folder / "shoe" / "0.png").read_bytes()[:40])
    with pytest.raises(DataError) as caught:
        load_splits(str(folder), Columns(), Limits(), random_seed=0, name="clothes")
    assert "2 rows are at fault" in str(caught.value)
    assert "bag/3.png: the picture is of no format that is read, or damaged" in str(caught.value)
    assert "shoe/1.png" in str(caught.value)
    (folder / "bag" / "3.png").unlink()
    (folder / "bag" / "3.txt").write_text("a text")
    with pytest.raises(DataError, match="mixes texts and pictures"):
        load_splits(str(folder), Columns(), Limits(), random_seed=0, name="clothes")


def test_paths_in_a_table_are_relative_to_it(tmp_path):
    folder = write_pictures(tmp_path / "files", ["bag", "shoe"], 5)
    rows = [{"image": f"files/{kind}/{n}.png", "label": kind} for kind in ("bag", "shoe") for n in range(5)]
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = load_texts(str(table), IMAGE, None, 0)
    assert [item.png for item in examples.texts] == [
        picture_of(folder / kind / f"{n}.png").png for kind in ("bag", "shoe") for n in range(5)
    ]
    table.write_text(table.read_text() + '{"image": "files/none.png", "label": "bag"}\n{"label": "bag"}\n')
    with pytest.raises(DataError) as caught:
        load_texts(str(table), IMAGE, None, 0)
    assert "row 11: the file files/none.png cannot be read" in str(caught.value)
    assert "row 12: the picture is missing" in str(caught.value)
    with pytest.raises(DataError, match=r"no column 'photo' for the image"):
        load_texts(str(table), Columns(image="photo"), None, 0)


def test_parquet_as_datasets_writes_it(tmp_path):
    pictures = [picture_of(draw("bag", n)) for n in range(4)]
    cells = [{"bytes": picture.png, "path": "x.png"} for picture in pictures]
    pyarrow.parquet.write_table(pa.table({"image": cells, "label": ["a", "b", "a", "b"]}), tmp_path / "train.parquet")
    examples = load_texts(str(tmp_path / "train.parquet"), IMAGE, None, 0)
    assert [item.content_hash for item in examples.texts] == [picture.content_hash for picture in pictures]
    pyarrow.parquet.write_table(pa.table({"image": [p.png for p in pictures]}), tmp_path / "bytes.parquet")
    assert list(load_texts(str(tmp_path / "bytes.parquet"), IMAGE, None, 0).texts) == pictures


def test_hub_data_of_pictures(monkeypatch):
    import datasets

    images = [Image.fromarray(draw("bag", n)) for n in range(3)]
    features = datasets.Features({"img": datasets.Image(), "fine": datasets.ClassLabel(names=["bag", "shoe"])})
    table = datasets.Dataset.from_dict({"img": images, "fine": [0, 1, 0]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: datasets.DatasetDict({"train": table}))
    examples = load_texts("owner/pictures", Columns(image="img", label="fine"), None, 0)
    assert examples.labels == ["bag", "shoe", "bag"]
    assert [item.content_hash for item in examples.texts] == [picture_of(draw("bag", n)).content_hash for n in range(3)]
