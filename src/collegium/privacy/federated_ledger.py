"""The ledger of a federation: what leaves a client in the rounds, and what it may tell. No mechanism protects it yet.

Algorithms say what they send (`Algorithm.releases`); what every client sends, whatever the algorithm, stands here.
"""

from collections.abc import Sequence

from collegium.privacy.ledger import Release

PLACE = "messages of the rounds"


def federated_release(what: str, from_data: str, reveals: str) -> Release:
    """One line; nothing of it has a bound."""
    return Release(what=what, file=PLACE, from_data=from_data, sensitivity="no bound is known", reveals=reveals)


def trained_arrays(names: str) -> Release:
    """The line of trained networks.

    Args:
        names: of the networks.
    """
    return federated_release(
        f"trained arrays: {names}",
        "the client's examples, anew in each round in which it takes part",
        "what trained weights can tell, possibly that an example was in the training data; many rounds tell more than "
        "one. A round is a number of passes over the examples, so that how far the weights move tells roughly how many "
        "examples there are",
    )


def federated_ledger(releases: Sequence[Release]) -> list[Release]:
    """All lines: the algorithm's, and those of every client on a node of its own."""
    return [
        *releases,
        Release(
            what="number of the client, length of its features, shape of its inputs, hash of what it agreed to",
            file=PLACE,
            from_data="the client's configuration; of the data only the size of an input and of a feature vector",
            sensitivity="0: the same for any examples of this kind",
            reveals="who takes part, and what kind of inputs it has",
        ),
        Release(
            what="when a reply arrives, or that none does",
            file=PLACE,
            from_data="how long the client trained, on the machine that it has",
            sensitivity="no bound is known",
            reveals="roughly how many examples there are. It is not sent, but the server can measure it",
        ),
    ]
