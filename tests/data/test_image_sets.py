"""The named sets of pictures, on files written here in the formats of their packages."""

import base64
import gzip
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from collegium.core.errors import DataError
from collegium.data import image_sets
from collegium.data.catalogue import CATALOGUE
from collegium.data.images import picture_of
from tiny import draw

SCRIPTS = Path(__file__).parents[2] / "scripts"


def idx(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return gzip.compress(header + values.tobytes())


def test_fashion_mnist(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 28, 28), np.uint8)
    labels = np.arange(20, dtype=np.uint8) % 10
    for part, rows in (("train", slice(0, 10)), ("t10k", slice(10, 20))):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(pixels[rows]))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(labels[rows]))
    monkeypatch.setenv("COLLEGIUM_FASHION_MNIST", str(tmp_path))
    train, test = CATALOGUE["fashion-mnist"].load(), CATALOGUE["fashion-mnist-test"].load()
    assert np.array_equal(train.texts[3].pixels[:, :, 0], pixels[3])
    assert np.array_equal(test.texts[3].pixels[:, :, 2], pixels[13])
    assert train.labels == list(image_sets.FASHION_CLASSES)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(idx(pixels)[:100])
    with pytest.raises(DataError, match="train-images-idx3-ubyte.gz is no idx file"):
        CATALOGUE["fashion-mnist"].load()
    monkeypatch.setenv("COLLEGIUM_FASHION_MNIST", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"fetch_debian\.sh fashion-mnist"):
        CATALOGUE["fashion-mnist"].load()


def test_mnist(tmp_path):
    file = tmp_path / "data" / "data" / "mnist_5k.csv.gz"
    file.parent.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 784))
    lines = [",".join(map(str, [*row, label])) for row, label in zip(pixels.tolist(), [7, 0, 9])]
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    examples = image_sets.load_mnist(tmp_path)
    assert examples.labels == ["digit 7", "digit 0", "digit 9"]
    assert np.array_equal(examples.texts[1].pixels[:, :, 0], pixels[1].reshape(28, 28))


def test_digits():
    examples = CATALOGUE["digits"].load()
    assert len(examples) == 1797
    assert len(Counter(examples.labels)) == 10
    assert examples.texts[0].pixels.max() == 239  # 15 of 16


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    kinds = ["bag", "shoe"]
    examples = [
        {
            "input": base64.b64encode(picture_of(draw(kind, n)).png).decode(),
            "target_scores": {one: int(one == kind) for one in kinds},
        }
        for kind in kinds
        for n in range(30)
    ]
    (tmp_path / "cifar10.json").write_text(json.dumps({"examples": examples}))
    monkeypatch.setenv("COLLEGIUM_CIFAR10", str(tmp_path))
    return tmp_path


def test_cifar10_is_parted_once_and_for_all(cifar):
    every, private, public = (CATALOGUE[name].load() for name in ("cifar-10", "cifar-10-private", "cifar-10-public"))
    hashes = [{picture.content_hash for picture in part.texts} for part in (every, private, public)]
    assert Counter(every.labels) == {"bag": 30, "shoe": 30}
    assert hashes[0] == hashes[1] | hashes[2]
    assert not hashes[1] & hashes[2]
    assert 10 < len(public) < 38  # 40 % of 60, within three standard deviations
    (cifar / "cifar10.json").write_text("[]")
    with pytest.raises(DataError, match="not the file of bigbench"):
        CATALOGUE["cifar-10"].load()


def test_the_pool_of_the_vision_recipe_holds_no_picture_of_its_owners(cifar, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 28, 28), np.uint8)
    for part in ("train", "t10k"):
        (cifar / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(pixels))
        (cifar / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(np.zeros(12, np.uint8)))
    monkeypatch.setenv("COLLEGIUM_FASHION_MNIST", str(cifar))
    monkeypatch.setattr(image_sets, "load_emoji", lambda: image_sets.Examples([picture_of(draw("hat", 0))], None))
    pool = CATALOGUE["vision-pool"].load()
    assert pool.labels is None
    assert len(pool) == len(CATALOGUE["cifar-10-public"].load()) + 2 + 1
    private = {picture.content_hash for picture in CATALOGUE["cifar-10-private"].load().texts}
    assert not private & {picture.content_hash for picture in pool.texts}


def test_emoji_are_the_bitmaps_of_the_font():
    try:
        emoji = CATALOGUE["emoji"].load()
    except DataError:
        pytest.skip(
            "the font is not installed: `sh scripts/fetch_debian.sh emoji .cache/emoji`; the next test needs none"
        )
    assert len(emoji) > 1000
    assert emoji.labels is None
    assert {picture.pixels.shape for picture in emoji.texts[:50]} == {(128, 136, 3)}


def test_glyphs_without_a_bitmap_are_left_out(tmp_path, monkeypatch):
    class Glyph:
        pass

    def read(value):
        glyph = Glyph()
        glyph.imageData = picture_of(draw(value, 0)).png
        return glyph

    class Font(dict):
        def __init__(self, path, lazy):
            assert (path, lazy) == (tmp_path / image_sets.EMOJI_FONT, True)
            strikes = [{"b": read("hat"), "a": read("cat"), "space": Glyph()}, {"a": read("sun")}]
            super().__init__(CBDT=SimpleNamespace(strikeData=strikes))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    (tmp_path / image_sets.EMOJI_FONT).touch()
    monkeypatch.setenv("COLLEGIUM_EMOJI", str(tmp_path))
    monkeypatch.setattr("fontTools.ttLib.TTFont", Font)
    emoji = CATALOGUE["emoji"].load()
    expected = [picture_of(draw(kind, 0)).content_hash for kind in ("cat", "hat", "sun")]
    assert [picture.content_hash for picture in emoji.texts] == expected


def test_without_the_font_the_error_says_how_to_fetch_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLEGIUM_EMOJI", str(tmp_path))
    with pytest.raises(DataError, match=r"fetch_debian\.sh emoji"):
        CATALOGUE["emoji"].load()


def run_script(name: str, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("sh") or "sh", str(SCRIPTS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path}, check=False)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("fetch_debian.sh", ["emoji"], "usage"),
        ("fetch_debian.sh", ["films", "DEST"], "films is not known"),
        ("fetch_debian.sh", ["emoji", "DEST"], "apt-get is missing"),
        ("fetch_cifar10.sh", [], "usage"),
    ],
)
def test_scripts_fail_with_one_line(tmp_path, name, arguments, message):
    destination = tmp_path / "new"
    arguments = [str(destination) if one == "DEST" else one for one in arguments]
    failed = run_script(name, *arguments, path=str(tmp_path / "no-programs"))
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert message in failed.stderr
    assert not destination.exists()


def test_scripts_do_nothing_where_everything_is_there(cifar, tmp_path):
    for file in ("NotoColorEmoji.ttf", "copyright"):
        (cifar / file).write_text("there")
    for name, arguments in (("fetch_debian.sh", ["emoji"]), ("fetch_cifar10.sh", [])):
        done = run_script(name, *arguments, str(cifar), path=str(tmp_path / "no-programs"))
        assert (done.returncode, "already" in done.stdout) == (0, True)
