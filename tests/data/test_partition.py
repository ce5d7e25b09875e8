"""Partitions: each example once, nobody too poor, the promised kind of unevenness, and an end whatever the numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from collegium.core.errors import InputError
from collegium.core.partition_settings import PartitionSettings
from collegium.data.partition import describe_partition, partition

ALPHAS = st.floats(math.log(1e-3), math.log(1e3)).map(math.exp)


def settings_of(kind: str, num_clients: int, min_examples: int = 1, **keys: object) -> PartitionSettings:
    needs = {"dirichlet": {"alpha": 0.5}, "quantity-skew": {"alpha": 0.5}, "pathological": {"classes_per_client": 2}}
    keys = {**needs.get(kind, {}), **keys}
    return PartitionSettings(kind=kind, num_clients=num_clients, min_examples=min_examples, **keys)


def balanced(num_classes: int, of_each: int) -> np.ndarray:
    """Labels in turn, as in a shuffled data set."""
    return np.tile(np.arange(num_classes), of_each)


@st.composite
def possible(draw: st.DrawFn) -> tuple[list[int], PartitionSettings]:
    """Unbalanced labels, and settings that they allow whatever the kind."""
    kind = draw(st.sampled_from(["iid", "dirichlet", "pathological", "by-domain", "quantity-skew"]))
    num_classes = draw(st.integers(1, 6))
    num_clients = draw(st.integers(num_classes, 12))
    min_examples = draw(st.integers(1, 4))
    of_each = [num_clients * min_examples + draw(st.integers(0, 60)) for _ in range(num_classes)]
    labels = draw(st.permutations([c for c, size in enumerate(of_each) for _ in range(size)]))
    keys: dict = {"alpha": draw(ALPHAS)} if kind in ("dirichlet", "quantity-skew") else {}
    if kind == "pathological":
        keys["classes_per_client"] = draw(st.integers(1, num_classes))
    return labels, settings_of(kind, num_clients, min_examples, **keys)


@given(case=possible(), seed=st.integers(0, 99))
def test_every_example_goes_to_one_client_and_every_client_has_enough(case, seed):
    labels, settings = case
    parts = partition(labels, settings, seed, domains=labels)
    assert len(parts) == settings.num_clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= settings.min_examples
    assert all((np.diff(part) > 0).all() for part in parts)
    if settings.kind in ("iid", "dirichlet"):
        assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1
    groups_per_client = {"pathological": settings.classes_per_client, "by-domain": 1}.get(settings.kind)
    if groups_per_client is not None:
        assert {len({labels[i] for i in part}) for part in parts} == {groups_per_client}


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "pathological", "by-domain", "quantity-skew"])
def test_a_random_seed_gives_one_partition_and_another_seed_another(kind):
    labels = balanced(5, 40)
    first, again, other = (partition(labels, settings_of(kind, 8), seed, labels) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other))


@pytest.mark.parametrize("kind", ["dirichlet", "pathological", "by-domain"])
def test_names_and_numbers_of_the_same_order_are_shared_out_alike(kind):
    labels = balanced(4, 30)
    names = ["abcd"[c] for c in labels]
    by_number, by_name = (partition(v, settings_of(kind, 6), 0, domains=v) for v in (labels, names))
    assert all(np.array_equal(a, b) for a, b in zip(by_number, by_name))


def test_a_tiny_alpha_gives_nearly_one_class_a_client_and_a_huge_one_the_whole():
    labels = balanced(10, 500)
    tiny, huge, iid = (
        describe_partition(partition(labels, settings, 0), labels)
        for settings in (
            settings_of("dirichlet", 50, alpha=1e-3),
            settings_of("dirichlet", 50, alpha=1e3),
            settings_of("iid", 50),
        )
    )
    assert tiny["classes"]["median"] == 1
    assert tiny["mean_total_variation"] > 0.85  # one class of ten: 0.9
    assert huge["mean_total_variation"] < iid["mean_total_variation"] + 0.03


def test_alpha_is_the_dirichlet_parameter_of_every_class_where_classes_are_balanced():
    """The expected square of a share is (α + 1) / (C (Cα + 1)), and sampling n labels adds (1/C − that) / n."""
    alpha, num_classes, of_each = 0.3, 5, 4000
    labels = balanced(num_classes, of_each)
    squares = []
    for seed in range(5):
        parts = partition(labels, settings_of("dirichlet", 100, alpha=alpha), seed)
        squares += [((np.bincount(labels[p], minlength=num_classes) / len(p)) ** 2).mean() for p in parts]
    expected = (alpha + 1) / (num_classes * (num_classes * alpha + 1))
    expected += (1 / num_classes - expected) / (num_classes * of_each / 100)
    assert np.mean(squares) == pytest.approx(expected, rel=0.05)


def test_large_alpha_keeps_the_shares_of_unbalanced_classes():
    labels = np.repeat([0, 1], [9000, 1000])
    parts = partition(labels, settings_of("dirichlet", 10, alpha=1e3), 0)
    assert all(abs((labels[part] == 1).mean() - 0.1) < 0.04 for part in parts)


def test_the_last_clients_are_drawn_like_the_first():
    """With class shares drawn around a fixed prior, the last clients get what is left: twice as uneven at α = 1."""
    labels = balanced(10, 500)
    distances = np.zeros(50)
    for seed in range(30):
        parts = partition(labels, settings_of("dirichlet", 50, alpha=1.0), seed)
        distances += [describe_partition([part], labels)["mean_total_variation"] for part in parts]
    assert distances[-10:].mean() == pytest.approx(distances[:10].mean(), rel=0.15)


@pytest.mark.parametrize("labels", [balanced(10, 1000), np.repeat([0, 1, 2], [9990, 9, 1])], ids=["balanced", "rare"])
def test_many_clients_a_tiny_alpha_and_not_one_example_to_spare_end(labels, monkeypatch):
    """Drawing again until all have min_examples never ends here. Draws are counted, so that a loop fails at once."""
    num_clients = len(labels) // 10
    draws = 0

    class Counted(np.random.Generator):
        def multinomial(self, *args: object) -> np.ndarray:
            nonlocal draws
            draws += 1
            assert draws <= num_clients + len(set(labels.tolist())), "a draw ended no client and emptied no class"
            return super().multinomial(*args)

    monkeypatch.setattr("collegium.data.partition.stream", lambda *names: Counted(np.random.PCG64(0)))
    parts = partition(labels, settings_of("dirichlet", num_clients, min_examples=10, alpha=1e-3), 0)
    assert {len(part) for part in parts} == {10}


def test_pathological_clients_of_balanced_classes_have_equal_sizes_and_many_pairs_of_classes():
    labels = balanced(10, 200)
    parts = partition(labels, settings_of("pathological", 50, min_examples=40), 0)
    assert {len(part) for part in parts} == {40}
    assert len({tuple(np.unique(labels[part])) for part in parts}) > 20


def test_shards_follow_the_size_of_the_class():
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    parts = partition(labels, settings_of("pathological", 10, classes_per_client=1), 0)
    holders = np.bincount([labels[part[0]] for part in parts])
    assert holders.tolist() == [6, 3, 1]


def test_clients_of_a_domain_have_every_label_of_it():
    domains = ["bbc"] * 400 + ["films"] * 200
    labels = ["sport", "tech"] * 200 + ["good", "bad"] * 100
    parts = partition(labels, settings_of("by-domain", 6, min_examples=50), 0, domains)
    assert sorted(domains[part[0]] for part in parts) == ["bbc"] * 4 + ["films"] * 2
    for part in parts:
        own = {"bbc": {"sport", "tech"}, "films": {"good", "bad"}}[domains[part[0]]]
        assert {domains[i] for i in part} == {domains[part[0]]}
        assert {labels[i] for i in part} == own


def test_quantity_skew_moves_sizes_and_not_labels():
    labels = balanced(2, 10_000)
    skewed = partition(labels, settings_of("quantity-skew", 10, min_examples=500, alpha=1e-3), 0)
    even = partition(labels, settings_of("quantity-skew", 10, min_examples=500, alpha=1e3), 0)
    assert sorted(len(part) for part in skewed)[:9] == pytest.approx([500] * 9, abs=10)
    assert [len(part) for part in even] == pytest.approx([2000] * 10, rel=0.2)
    assert all(abs(labels[part].mean() - 0.5) < 0.1 for part in [*skewed, *even])


def test_a_description_by_hand():
    labels = ["a", "a", "a", "b"]
    described = describe_partition([np.array([0, 1]), np.array([2, 3])], labels)
    assert described == {
        "sizes": {"min": 2, "median": 2, "max": 2},
        "classes": {"min": 1, "median": 1.5, "max": 2},
        "mean_total_variation": 0.25,  # {a: 1} and {a: ½, b: ½} from {a: ¾, b: ¼}: ¼ each
    }


@pytest.mark.parametrize(
    ("labels", "settings", "domains", "words"),
    [
        (balanced(2, 10), settings_of("iid", 5, min_examples=5), None, ["20 examples", "= 25 at least"]),
        (balanced(2, 10), settings_of("pathological", 5, classes_per_client=3), None, ["at most 2 classes a client"]),
        (balanced(5, 9), settings_of("pathological", 2), None, ["2 clients × 2 classes", "5 or more over all clients"]),
        (
            np.repeat([0, 1], [99, 4]),
            settings_of("pathological", 5, min_examples=10),
            None,
            ["rarest class has 4 examples", "at least 5 examples of every class"],
        ),
        (balanced(3, 5), settings_of("by-domain", 2), balanced(3, 5), ["2 clients × 1 domain", "take more clients"]),
        (balanced(3, 5), settings_of("by-domain", 3), None, ["no domains", "15 domains"]),
        (balanced(3, 5), settings_of("by-domain", 3), [0, 1], ["2 domains", "15 domains"]),
        (np.array([0.5, 1.0]), settings_of("dirichlet", 1), None, ["neither a name nor a whole number", "float"]),
        (np.array(["a", 1], dtype=object), settings_of("dirichlet", 1), None, ["int, str"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_numbers(labels, settings, domains, words):
    with pytest.raises(InputError) as caught:
        partition(labels, settings, 0, domains)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"kind": "dirichlet"}, ["dirichlet needs alpha"]),
        ({"kind": "iid", "alpha": 0.1}, ["alpha: 0.1 is for kind dirichlet or quantity-skew, not for iid"]),
        (
            {"kind": "pathological", "alpha": 0.1},
            ["alpha: 0.1 is for kind dirichlet or quantity-skew", "pathological needs classes_per_client"],
        ),
    ],
)
def test_a_key_of_another_kind_and_a_missing_key_are_errors_told_together(keys, words):
    with pytest.raises(ValidationError) as caught:
        PartitionSettings(num_clients=2, **keys)
    assert all(word in str(caught.value) for word in words)
