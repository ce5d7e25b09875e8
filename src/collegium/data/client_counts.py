"""How many examples of each group a client gets, for every kind of partition. All of it ends, whatever the numbers.

A group is a class, a domain, or (where the label plays no part) all examples. Every function takes the sizes of the
groups and gives a table of counts (clients × groups) whose columns add up to those sizes and whose rows to at least
`min_examples`. The caller has made sure that there are num_clients × min_examples examples.

Dirichlet partitions are known in two readings. Yurochkin et al. 2019 (arXiv:1905.12022) share each *class* out among
the clients by Dirichlet(α); clients may get next to nothing, and programs draw again until all have enough, which for a
small α or many clients never happens. Hsu, Qi and Brown 2019 (arXiv:1909.06335) draw class shares for each *client*,
all of one size. We follow Hsu: α then rules the labels alone (sizes are for kind quantity-skew), means the same for any
number of clients, and every client has enough examples without a second draw. Two deviations:

* Hsu's parameter is α · p, with p the class shares of the whole. Ours is α · (number of classes) · p, which is α for
  every class where the classes are balanced: the scale of Yurochkin's α, which most programs and papers use.
* Hsu keep p and run out of classes, so that the last clients get what is left. We take for p the shares of what is
  left, so a class that was given away too often is drawn less by the next clients. Only the very last client, which
  takes whatever is left, still differs.
"""

import numpy as np
from jaxtyping import Int

from collegium.core.errors import InputError
from collegium.core.partition_settings import PartitionSettings

Counts = Int[np.ndarray, "clients groups"]
Sizes = Int[np.ndarray, " groups"]


def dirichlet(sizes: Sizes, settings: PartitionSettings, random: np.random.Generator) -> Counts:
    """Clients of equal size (±1); each draws class shares q from Dirichlet(α · classes · p), and its labels from q.

    Where a client's draw asks for more of a class than is left, it takes what is left and draws the rest from its other
    classes by q, or by a new q if the old one has none of these. α → ∞ is kind iid.
    """
    assert settings.alpha is not None
    counts = np.zeros((settings.num_clients, len(sizes)), dtype=np.int64)
    left = sizes.copy()
    for client, size in enumerate(_equal(int(sizes.sum()), settings.num_clients)):
        counts[client] = _draw(settings.alpha * len(sizes), left, int(size), random)
        left -= counts[client]
    return counts


def few_groups(sizes: Sizes, settings: PartitionSettings, random: np.random.Generator) -> Counts:
    """Each client gets examples of exactly `classes_per_client` classes (kind by-domain: of one domain).

    After McMahan et al. 2017 (arXiv:1602.05629), who cut the examples, sorted by label, into shards of one size and
    give each client two. Such a shard can straddle two classes and a client can get two shards of one class; ours
    are cut inside a class, as many of each as makes the smallest shard largest, and a client's shards differ in class.
    A shard holds at least min_examples / classes_per_client examples, so every client has enough.

    Raises:
        InputError: more classes a client than there are; fewer shards than classes, so that examples of a class
            would go to nobody; classes too rare to be cut into enough shards.
    """
    what, plural = ("domain", "domains") if settings.kind == "by-domain" else ("class", "classes")
    per_client = settings.classes_per_client or 1
    shards = settings.num_clients * per_client
    if not per_client <= len(sizes) <= shards:
        raise InputError(
            f"The {plural} cannot be shared out so that every client has its number and none is left over.",
            got=f"{settings.num_clients} clients × {per_client} {what if per_client == 1 else plural}",
            expected=f"at most {len(sizes)} {plural} a client, and {len(sizes)} or more over all clients",
            do="change num_clients or classes_per_client" if what == "class" else "take more clients",
        )
    smallest = -(-settings.min_examples // per_client)
    most = np.minimum(sizes // smallest, settings.num_clients)
    if most.min() == 0 or most.sum() < shards:
        raise InputError(
            f"Some {plural} are too rare to give every client min_examples.",
            got=f"{most.sum()} shards of {smallest} examples or more; the rarest {what} has {sizes.min()} examples",
            expected=f"{shards} shards ({settings.num_clients} clients × {per_client}), and at least {smallest} "
            f"examples of every {what}",
            do=f"take a smaller min_examples (now {settings.min_examples}), fewer clients, or leave rare {plural} out",
        )
    return _cut(sizes, _shards_of_each(sizes, most, shards), settings.num_clients, per_client, random)


def equal_sizes(sizes: Sizes, settings: PartitionSettings, random: np.random.Generator) -> Counts:
    """Sizes that differ by at most one."""
    return _equal(int(sizes.sum()), settings.num_clients)[:, None]


def skewed_sizes(sizes: Sizes, settings: PartitionSettings, random: np.random.Generator) -> Counts:
    """Every client gets min_examples, and of the rest a share drawn from Dirichlet(α) over the clients."""
    rest = int(sizes.sum()) - settings.num_clients * settings.min_examples
    edges = np.cumsum(random.dirichlet(np.full(settings.num_clients, settings.alpha)))
    ends = np.rint(rest * edges / edges[-1]).astype(np.int64)
    return (settings.min_examples + np.diff(ends, prepend=0))[:, None]


def _equal(total: int, num_clients: int) -> Int[np.ndarray, " clients"]:
    return total // num_clients + (np.arange(num_clients) < total % num_clients)


def _draw(concentration: float, left: Sizes, size: int, random: np.random.Generator) -> Sizes:
    """`size` labels of one client, none more often than it is `left`. A pass that does not end it empties a class."""
    taken = np.zeros_like(left)
    shares = np.zeros(len(left))
    while missing := size - int(taken.sum()):
        room = left - taken
        there = np.flatnonzero((room > 0) & (shares > 0))
        if not len(there):
            there = np.flatnonzero(room)
            shares[there] = random.dirichlet(concentration * room[there] / room.sum())
            there = there[shares[there] > 0]
        drawn = random.multinomial(missing, shares[there] / shares[there].sum())
        taken[there] += np.minimum(drawn, room[there])
    return taken


def _shards_of_each(sizes: Sizes, most: Sizes, shards: int) -> Sizes:
    """Shards of each group: 1 to `most`, `shards` in all, and the smallest shard as large as can be (D'Hondt)."""
    group = np.repeat(np.arange(len(sizes)), most - 1)
    nth = np.concatenate([np.arange(2, m + 1) for m in most])
    first = np.argsort(-sizes[group] / nth, kind="stable")[: shards - len(sizes)]
    return 1 + np.bincount(group[first], minlength=len(sizes))


def _cut(sizes: Sizes, shards_of_each: Sizes, num_clients: int, per_client: int, random: np.random.Generator) -> Counts:
    """Deal the shards: to each client `per_client` of different groups, by chance in proportion to the shards left.

    A group with as many shards as there are clients left has to go to the next one. As no group ever has more, a
    client always finds enough different groups.
    """
    waiting = shards_of_each.copy()
    has = np.zeros((num_clients, len(sizes)), dtype=bool)
    for client in range(num_clients):
        due = waiting == num_clients - client
        free = np.flatnonzero((waiting > 0) & ~due)
        chosen = per_client - int(due.sum())
        if chosen:
            due[random.choice(free, chosen, replace=False, p=waiting[free] / waiting[free].sum())] = True
        has[client] = due
        waiting -= due
    counts = np.zeros(has.shape, dtype=np.int64)
    for group, size in enumerate(sizes):
        counts[has[:, group], group] = _equal(int(size), int(shards_of_each[group]))
    return counts
