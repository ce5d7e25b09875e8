"""Pictures: what an image file, its bytes, an array or a Pillow image becomes, and what makes two of them equal.

A picture is 8-bit RGB, upright (EXIF orientation applied), transparency on white, and kept as PNG: lossless, so that
its pixels are the same on every machine (JPEG decoders differ in the last bit). Grey pictures become RGB with equal
channels, since that is what a vision model sees. Two pictures are equal when their pixels are, whatever files they
came in. Of an animation the first frame is taken.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
MOST_PIXELS = 1 << 26  # of one picture; a small file can claim any size
DEEP_MODES = ("I", "F")  # Pillow's modes of more than 8 bits a channel; converting them would clip, not scale


@dataclass(frozen=True)
class Picture:
    """One picture, as PNG bytes of 8-bit RGB pixels."""

    png: bytes

    @property
    def pixels(self) -> UInt8[np.ndarray, "height width 3"]:
        """Decoded anew each time, since a data set of pictures is held as PNG.

        Raises:
            ValueError: the bytes are no picture, which a pool from another machine may claim.
        """
        return _decode(self.png)

    @cached_property
    def content_hash(self) -> str:
        """The first 128 bits of a sha256 of size and pixels, in hex."""
        pixels = self.pixels
        height, width, _ = pixels.shape
        return hashlib.sha256(f"picture {height} {width} ".encode() + pixels.tobytes()).hexdigest()[:32]


def picture_of(value: object, folder: Path = Path()) -> Picture:
    """The picture in `value`, which may be any of the forms in which tables hold pictures.

    Args:
        value: bytes of an image file; its path, relative to `folder`; a mapping with `bytes` or `path`, as
            `datasets` writes it; an array of uint8, grey or RGB; a Pillow image.

    Raises:
        ValueError: with the reason why there is no picture.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if value is None or (isinstance(value, str | float) and str(value).strip() in ("", "nan")):
        raise ValueError("the picture is missing")
    if isinstance(value, str | Path):
        try:
            value = (folder / value).read_bytes()
        except OSError as error:
            raise ValueError(f"the file {value} cannot be read ({error.strerror})") from None
    if isinstance(value, bytes):
        return _encode(_decode(value))
    if isinstance(value, Pillow.Image):
        return _encode(_rgb(value))
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (2, 3):
        return _encode(_rgb(Pillow.fromarray(value)))
    raise ValueError(f"the picture is no picture but {type(value).__name__}")


def _encode(pixels: UInt8[np.ndarray, "height width 3"]) -> Picture:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return Picture(buffer.getvalue())


def _decode(encoded: bytes) -> UInt8[np.ndarray, "height width 3"]:
    try:
        with Pillow.open(io.BytesIO(encoded)) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise ValueError(f"the picture is too large ({opened.width} × {opened.height} pixels)")
            return _rgb(opened)
    except UnidentifiedImageError:
        raise ValueError("the picture is of no format that is read, or damaged") from None
    except ValueError:
        raise
    except Exception as error:  # Pillow's readers raise errors of many kinds for damaged files
        raise ValueError(
            f"the picture is damaged ({str(error).splitlines()[0][:80] or type(error).__name__})"
        ) from None


def _rgb(opened: Pillow.Image) -> UInt8[np.ndarray, "height width 3"]:
    if opened.mode.startswith(DEEP_MODES):
        raise ValueError(f"the picture has more than 8 bits a channel (Pillow's mode {opened.mode}); save it with 8")
    upright = ImageOps.exif_transpose(opened)
    if upright.has_transparency_data:
        page = Pillow.new("RGBA", upright.size, "white")
        upright = Pillow.alpha_composite(page, upright.convert("RGBA"))
    return np.asarray(upright.convert("RGB"))
