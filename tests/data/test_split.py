"""Splitting and sampling, for any set of classes: nothing lost, nothing twice, every class at its share."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collegium.data.items import normalised
from collegium.data.rows import Examples
from collegium.data.split import carve, drop_duplicates, sample

class_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def examples_of(sizes: list[int]) -> Examples:
    labels = [f"class {c}" for c, size in enumerate(sizes) for _ in range(size)]
    return Examples([f"text {i}" for i in range(len(labels))], labels)


def counts(examples: Examples) -> Counter[str]:
    return Counter(examples.labels)


@given(sizes=class_sizes, seed=st.integers(0, 99))
def test_carving_loses_nothing_and_keeps_the_shares(sizes, seed):
    examples = examples_of(sizes)
    parts = carve(examples, ["test", "validation"], np.random.default_rng(seed))
    assert sorted(t for part in parts.values() for t in part.texts) == sorted(examples.texts)
    for label, size in counts(examples).items():
        if size >= 3:
            assert abs(counts(parts["test"])[label] - max(1, 0.20 * size)) <= 0.5
            assert abs(counts(parts["validation"])[label] - max(1, 0.15 * size)) <= 0.5
        assert counts(parts["train"])[label] >= 1


@given(sizes=class_sizes, limit=st.integers(1, 250), seed=st.integers(0, 99))
def test_a_sample_has_its_size_its_order_and_the_shares_of_the_classes(sizes, limit, seed):
    examples = examples_of(sizes)
    drawn = sample(examples, limit, np.random.default_rng(seed))
    assert len(drawn) == min(limit, len(examples))
    positions = [examples.texts.index(text) for text in drawn.texts]
    assert positions == sorted(set(positions))
    if limit >= len(sizes):
        assert len(counts(drawn)) == len(sizes)
        for label, size in counts(examples).items():
            share = len(drawn) * size / len(examples)
            assert counts(drawn)[label] <= share + len(sizes)


@given(texts=st.lists(st.sampled_from(["a", "a ", "b", " a b", "a  b", "c"]), min_size=3, max_size=12))
def test_no_text_stands_in_two_splits(texts):
    splits = {"train": Examples(texts[::3], None), "validation": Examples(texts[1::3], None)}
    splits["test"] = Examples(texts[2::3], None)
    kept = drop_duplicates(splits)
    assert kept["train"] == splits["train"]
    sets = [{normalised(text) for text in part.texts} for part in kept.values()]
    assert sum(len(texts_of_split) for texts_of_split in sets) == len(set.union(*sets))
    assert set.union(*sets) == {normalised(text) for text in texts}


def test_a_larger_sample_holds_the_smaller_one():
    examples = examples_of([30, 10, 5])
    small, large = (set(sample(examples, n, np.random.default_rng(1)).texts) for n in (9, 20))
    assert small < large


def test_unlabelled_examples_are_split_as_one_class():
    parts = carve(Examples([str(i) for i in range(20)], None), ["test"], np.random.default_rng(0))
    assert {name: len(part) for name, part in parts.items()} == {"test": 4, "train": 16}
    assert parts["test"].labels is None
