"""What else sets the clients of a simulated federation apart: who is held out, and whose labels mean something else."""

import numpy as np
from jaxtyping import Int

from collegium.core.errors import InputError
from collegium.core.random_streams import stream


def split_clients(
    num_clients: int, share_of_test: float, random_seed: int
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Training clients and test clients (never seen while training), both as rising numbers from 0; none is in both.

    Args:
        share_of_test: share of the clients that are test clients, between 0 and 1; rounded to whole clients, with
            one at least on either side.

    Raises:
        InputError: fewer than two clients, or a share that is not between 0 and 1.
    """
    if num_clients < 2 or not 0 < share_of_test < 1:
        raise InputError(
            "Clients cannot be split into training and test clients.",
            got=f"{num_clients} clients, share_of_test {share_of_test}",
            expected="2 clients or more, and a share above 0 and below 1",
            do="change num_clients or share_of_test",
        )
    num_test = min(max(1, int(share_of_test * num_clients + 0.5)), num_clients - 1)
    order = stream(random_seed, "test clients").permutation(num_clients)
    return np.sort(order[num_test:]), np.sort(order[:num_test])


def concept_shift(
    num_clients: int, num_classes: int, groups: int, random_seed: int
) -> Int[np.ndarray, "clients classes"]:
    """A permutation of the classes for each client: its examples of class c get the label `[client, c]`.

    Client i is in group i mod `groups`. Clients of a group share a permutation; that of group 0 changes nothing;
    any two groups disagree on every class, so that on any example one model for all can be right for one group only.
    To that end the permutations turn one random circle of all classes by different steps; independent permutations
    would agree on a class now and then, and could even be equal where there are few classes.

    Raises:
        InputError: no group; more groups than classes or than clients.
    """
    if not 1 <= groups <= min(num_classes, num_clients):
        raise InputError(
            "So many groups of clients cannot have labels of their own.",
            got=f"{groups} groups, {num_classes} classes, {num_clients} clients",
            expected="at least 1 group, and no more groups than classes or clients",
            do="change the number of groups",
        )
    random = stream(random_seed, "concept shift")
    circle = random.permutation(num_classes)
    steps = np.concatenate([[0], 1 + random.permutation(num_classes - 1)])[:groups]
    permutations = np.empty((groups, num_classes), dtype=np.int64)
    for group, step in enumerate(steps):
        permutations[group, circle] = np.roll(circle, -step)
    return permutations[np.arange(num_clients) % groups]
