"""Shares a labelled data set out among the clients of a simulated federation.

A partition is for simulation only: somebody who holds all examples plays all clients. Of real clients nobody may learn
how many examples of which class they hold, so nothing here runs on, or is asked of, a real client.

Each kind of partition is arithmetic on counts (client_counts.py): how many examples of each class, or of each domain,
a client gets. Which examples these are is drawn here, once for all kinds, so that each example is given away once.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int, Shaped

from collegium.core.errors import InputError
from collegium.core.partition_settings import PartitionSettings
from collegium.core.random_streams import stream
from collegium.data.client_counts import Counts, dirichlet, equal_sizes, few_groups, skewed_sizes

Names = Sequence[str] | Sequence[int] | Shaped[np.ndarray, " items"]
Part = Int[np.ndarray, " _"]


def partition(labels: Names, settings: PartitionSettings, random_seed: int, domains: Names | None = None) -> list[Part]:
    """The examples of each client, as rising indices into `labels`.

    Each example belongs to exactly one client, and each client has at least `settings.min_examples`. The same
    arguments give the same partition. Cost: O(examples · log examples + clients · classes).

    Args:
        labels: class of each example, a name or a whole number; the classes are those that occur.
        domains: domain of each example, for kind by-domain; not looked at otherwise.

    Raises:
        InputError: there are fewer examples than num_clients × min_examples; a class or domain is missing, too many
            or too rare for the kind (`few_groups`); `domains` is missing or of another length.
    """
    needed = settings.num_clients * settings.min_examples
    if len(labels) < needed:
        raise InputError(
            "There are too few examples for so many clients.",
            got=f"{len(labels)} examples",
            expected=f"{settings.num_clients} clients × {settings.min_examples} (min_examples) = {needed} at least",
            do="take fewer clients, a smaller min_examples, or more examples",
        )
    random = stream(random_seed, "partition", settings.kind)
    groups = _groups(labels, settings, domains)
    counts = COUNTS[settings.kind](np.bincount(groups), settings, random)
    return _deal(groups, counts, random)


def describe_partition(parts: Sequence[Part], labels: Names) -> dict[str, dict[str, float] | float]:
    """How uneven a partition is, in a few numbers for a report on a simulation.

    The counts of single clients are not among them, yet they are what the numbers are made of: real clients never
    report them, and neither should a report on real clients have such numbers.

    Args:
        parts: indices into `labels` of each client, of some clients or of all; none of them is empty.

    Returns:
        `sizes` (examples a client) and `classes` (classes a client), each with `min`, `median` and `max`, and
        `mean_total_variation`: the mean over the clients of half the L1 distance between a client's class shares and
        those of all `labels`; 0 = every client is like the whole, 1 = the most.
    """
    classes = _codes(labels, "label")
    whole = np.bincount(classes)
    counts = np.stack([np.bincount(classes[part], minlength=len(whole)) for part in parts])
    sizes = counts.sum(axis=1)
    distances = np.abs(counts / sizes[:, None] - whole / whole.sum()).sum(axis=1) / 2
    return {
        "sizes": _spread(sizes),
        "classes": _spread((counts > 0).sum(axis=1)),
        "mean_total_variation": round(float(distances.mean()), 5),
    }


COUNTS: dict[str, Callable[[Int[np.ndarray, " groups"], PartitionSettings, np.random.Generator], Counts]] = {
    "iid": equal_sizes,
    "dirichlet": dirichlet,
    "pathological": few_groups,
    "by-domain": few_groups,
    "quantity-skew": skewed_sizes,
}


def _groups(labels: Names, settings: PartitionSettings, domains: Names | None) -> Int[np.ndarray, " items"]:
    """What the counts are of: classes, domains, or one group of all examples where the label plays no part."""
    if settings.kind in ("dirichlet", "pathological"):
        return _codes(labels, "label")
    if settings.kind != "by-domain":
        return np.zeros(len(labels), dtype=np.int64)
    if domains is None or len(domains) != len(labels):
        raise InputError(
            "A partition by domain needs the domain of each example.",
            got="no domains" if domains is None else f"{len(domains)} domains",
            expected=f"{len(labels)} domains, one for each label",
            do="give the domains, or choose another kind",
        )
    return _codes(domains, "domain")


def _codes(names: Names, what: str) -> Int[np.ndarray, " items"]:
    """The number of each name in the sorted list of all names."""
    values = names.tolist() if isinstance(names, np.ndarray) else list(names)
    if not (all(isinstance(v, str) for v in values) or all(isinstance(v, int | np.integer) for v in values)):
        raise InputError(
            f"A {what} is neither a name nor a whole number, or some are names and some are numbers.",
            got=", ".join(sorted({type(v).__name__ for v in values})),
            expected="only str, or only int",
            do=f"drop examples without a {what}, and write all of them in one way",
        )
    code_of = {name: code for code, name in enumerate(sorted(set(values)))}
    return np.array([code_of[v] for v in values], dtype=np.int64)


def _deal(groups: Int[np.ndarray, " items"], counts: Counts, random: np.random.Generator) -> list[Part]:
    """Give each client as many examples of each group as `counts` says, which ones by chance."""
    assert (counts.sum(axis=0) == np.bincount(groups)).all(), "a group is not shared out exactly"
    shuffled = random.permutation(len(groups))
    by_group = shuffled[np.argsort(groups[shuffled], kind="stable")]
    clients = np.tile(np.arange(len(counts)), counts.shape[1])
    client_of = np.empty(len(groups), dtype=np.int64)
    client_of[by_group] = np.repeat(clients, counts.T.ravel())
    return np.split(np.argsort(client_of, kind="stable"), np.cumsum(counts.sum(axis=1))[:-1])


def _spread(values: Int[np.ndarray, " clients"]) -> dict[str, float]:
    return {"min": float(values.min()), "median": float(np.median(values)), "max": float(values.max())}
