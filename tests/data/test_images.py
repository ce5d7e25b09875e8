"""Pictures: what is read, what is refused and why, and which are equal."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from collegium.data.images import MOST_PIXELS, Picture, picture_of
from collegium.data.items import as_json, content_hash, describe, modality_of, normalised
from tiny import draw


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_equal_pixels_are_one_picture_whatever_file_they_came_in(tmp_path):
    pixels = draw("bag", 0)
    image = Image.fromarray(pixels)
    (tmp_path / "a.bmp").write_bytes(encoded(image, "BMP"))
    forms = [
        picture_of(pixels),
        picture_of(image),
        picture_of(encoded(image, "PNG", compress_level=9)),
        picture_of(encoded(image, "TIFF")),
        picture_of("a.bmp", tmp_path),
        picture_of(tmp_path / "a.bmp"),
        picture_of({"bytes": encoded(image), "path": None}),
        picture_of({"bytes": None, "path": str(tmp_path / "a.bmp")}),
    ]
    assert {form.content_hash for form in forms} == {forms[0].content_hash}
    assert len({form.png for form in forms}) == 1  # encoded anew, so that equal pictures have equal bytes
    assert np.array_equal(forms[0].pixels, pixels)
    changed = pixels.copy()
    changed[0, 0, 0] ^= 1
    assert picture_of(changed).content_hash != forms[0].content_hash
    assert picture_of(pixels.transpose(1, 0, 2)).content_hash != forms[0].content_hash


def test_the_hash_is_of_size_and_pixels():
    black = [picture_of(np.zeros(shape, np.uint8)) for shape in ((2, 8), (8, 2), (4, 4))]
    assert len({picture.content_hash for picture in black}) == 3
    expected = hashlib.sha256(b"picture 2 8 " + bytes(2 * 8 * 3)).hexdigest()[:32]
    assert black[0].content_hash == expected


def test_grey_palette_and_transparent_pictures_become_rgb():
    grey = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert np.array_equal(picture_of(grey).pixels, np.repeat(grey[:, :, None], 3, axis=2))
    assert picture_of(Image.fromarray(grey).convert("P")) == picture_of(grey)
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert (picture_of(clear).pixels == 255).all()  # on white, not the hidden colour
    assert (picture_of(Image.new("RGBA", (4, 4), (10, 20, 30, 255))).pixels == [10, 20, 30]).all()


def test_a_photograph_is_turned_upright():
    image = Image.fromarray(draw("bag", 1)[:6])
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90°
    turned = picture_of(encoded(image, "PNG", exif=exif))
    assert np.array_equal(turned.pixels, np.rot90(np.asarray(image), -1))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing"),
        ("", "missing"),
        (float("nan"), "missing"),
        ({"bytes": None, "path": None}, "missing"),
        (b"no picture", "no format"),
        ("nowhere.png", "nowhere.png cannot be read"),
        (7, "no picture but int"),
        (np.zeros((4, 4)), "no picture but ndarray"),
        (Image.fromarray(np.full((4, 4), 60000, np.uint16)), "more than 8 bits"),
    ],
)
def test_the_reason_is_named(value, reason):
    with pytest.raises(ValueError, match=reason):
        picture_of(value, Path("/nonexistent"))


def test_half_a_file_is_damaged():
    whole = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)))
    for end in (40, len(whole) // 2):
        with pytest.raises(ValueError, match="damaged|format"):
            picture_of(whole[:end])


def test_a_small_file_that_claims_a_huge_size_is_refused_before_it_is_decoded():
    side = int(MOST_PIXELS**0.5) + 1
    bomb = encoded(Image.new("1", (side, side)))
    assert len(bomb) < 100_000
    with pytest.raises(ValueError, match="too large"):
        picture_of(bomb)
    with pytest.raises(ValueError, match="too large"):
        _ = Picture(bomb).pixels


def test_items_of_both_kinds():
    picture = picture_of(draw("bag", 0))
    assert content_hash("a text") == hashlib.sha256(b"a text").hexdigest()[:32]
    assert content_hash(picture) == picture.content_hash == normalised(picture)
    assert (as_json("a  text"), normalised("a  text")) == ("a  text", "a text")
    assert as_json(picture) != picture.content_hash  # no text can stand for a picture by accident
    assert "8 × 8 pixels" in describe(picture)
    assert (modality_of(["a"]), modality_of([picture])) == ("text", "image")
