"""What an algorithm of federated learning is: arithmetic on named arrays, without a network, a clock or a file.

    server                                     client
    ask      → a question for each client  →   answer        (small: which experts do you want?)
    plan     → a task for each client      →   local_update  (training; its private state stays there)
    aggregate ← results, failures

The same object runs in one process, in a simulation and on real nodes: an engine carries `Message`s, and both sides
make the algorithm from the same settings. Whatever the order in which results arrive, the outcome is the same: they
are sorted by client before they are summed. Randomness comes from streams named by round and client.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, Shaped

from collegium.privacy.federated_ledger import trained_arrays
from collegium.privacy.ledger import Release

Arrays = dict[str, Shaped[np.ndarray, "..."]]  # name → array
Scalars = dict[str, int | float | str | bool]


@dataclass(frozen=True)
class Message:
    """What goes to a client or comes from it.

    Attributes:
        client: stable number of the client.
        server_round: counted from 1; the round of the task that a result answers.
        arrays: name → array.
        scalars: what is no array.
    """

    client: int
    server_round: int
    arrays: Arrays = field(default_factory=dict)
    scalars: Scalars = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, which is what counts on the wire."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True)
class ClientData:
    """A client's own examples, which never leave it.

    Attributes:
        features: what the frozen common expert says of each; the gate reads it.
        inputs: what the experts read; the features themselves, or pictures.
        labels: class of each; empty where nobody knows.
    """

    features: Float32[np.ndarray, "examples dim"]
    inputs: Float32[np.ndarray, "examples ..."]
    labels: Int64[np.ndarray, " _"]

    def __len__(self) -> int:
        return len(self.features)

    def take(self, rows: Sequence[int] | Int64[np.ndarray, " _"]) -> "ClientData":
        features = self.features[rows]
        return ClientData(features, features if self.inputs is self.features else self.inputs[rows], self.labels[rows])


class Algorithm(ABC):
    """One method; holds the server's state, of which the client's side uses nothing."""

    def ask(self, server_round: int, clients: Sequence[int]) -> list[Message]:
        """A question for each client before the round; none by default."""
        return []

    def answer(self, question: Message, data: ClientData) -> Message:
        """A client's answer to `ask`; says nothing by default."""
        return Message(question.client, question.server_round)

    def check_answer(self, question: Message, answer: Message) -> None:
        """Refuse what is no answer to the question; whoever sent it may be broken or hostile.

        Raises:
            ValueError: with the reason.
        """
        require_finite(answer.arrays)

    def preferred(self) -> list[int]:
        """Clients that are to take part more often than others; none by default."""
        return []

    @abstractmethod
    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        """The tasks of a round, one for each client that takes part.

        Args:
            answers: to `ask`, by client; of those that answered.
        """

    @abstractmethod
    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        """A client's work: (what it sends back, its private state for the next time).

        Args:
            local_state: what this client kept of its last round; empty at first.
        """

    def check_result(self, task: Message, result: Message) -> None:
        """Refuse what cannot be summed with the others' results; by default they are the task's arrays, trained.

        Raises:
            ValueError: with the reason.
        """
        require_like(result.arrays, task.arrays)

    @abstractmethod
    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        """Take in the results of a round.

        Args:
            results: in any order; those of earlier rounds are late, and weigh less (`weights_of`).
            failures: clients that were asked and did not answer.
        """

    def personalise(self, client: int, data: ClientData, local_state: Arrays) -> Arrays:
        """What a client makes for itself of the server's state and of its own examples, before it answers.

        It stays with the client. Nothing by default: the client answers as everybody does.

        Args:
            local_state: what the client kept of its last round; empty where it took part in none.
        """
        return {}

    @abstractmethod
    def predict(self, data: ClientData, local_state: Arrays | None = None) -> Float32[np.ndarray, "examples classes"]:
        """Log-probabilities of the classes, for a client that need not have trained.

        Args:
            local_state: what `personalise` made; None or empty = an unseen client.
        """

    def releases(self) -> list[Release]:
        """What a client's messages hold, and what that may tell of its data; the ledger's lines."""
        return [trained_arrays("the model")]

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that the server must know to go on: arrays, and values that JSON can hold."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""


def sorted_results(results: Sequence[Message]) -> list[Message]:
    """By client and round, one each: sums of floating-point numbers depend on their order.

    Raises:
        ValueError: two results of one client for one round.
    """
    ordered = sorted(results, key=lambda result: (result.client, result.server_round))
    keys = [(result.client, result.server_round) for result in ordered]
    if len(set(keys)) < len(keys):
        raise ValueError(f"two results of one client for one round: {keys}")
    return ordered


def weights_of(results: Sequence[Message], server_round: int) -> list[float]:
    """1 for a result of this round, 1 / √(1 + s) for one that is s rounds late.

    The polynomial weight of FedAsync (Xie, Koyejo, Gupta 2019, arXiv:1903.03934) with a = 0.5. There it mixes one late
    model into the server's; here it is its weight in the mean of a round.
    """
    return [(1 + server_round - result.server_round) ** -0.5 for result in results]


def weighted_mean(arrays: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
    """Σ w_i a_i / Σ w_i of every name, in float64, in the dtype of the first.

    Raises:
        ValueError: no array, names that differ, or weights that sum to 0.
    """
    total = float(sum(weights))
    if not arrays or total <= 0:
        raise ValueError("nothing to average: no arrays, or weights that sum to 0")
    names = arrays[0].keys()
    if any(one.keys() != names for one in arrays):
        raise ValueError("arrays of different names cannot be averaged")
    found = {}
    for name in names:
        sums = sum(weight * one[name].astype(np.float64) for one, weight in zip(arrays, weights, strict=True))
        found[name] = np.asarray(sums / total, dtype=arrays[0][name].dtype)
    return found


def require_like(arrays: Arrays, expected: Arrays) -> None:
    """Raise unless the arrays have the names, shapes and types of others, and finite values.

    Raises:
        ValueError: with the first difference.
    """
    if arrays.keys() != expected.keys():
        raise ValueError(f"its arrays are {sorted(arrays)[:20]}, not {sorted(expected)[:20]}")
    for name, array in arrays.items():
        if (array.shape, array.dtype) != (expected[name].shape, expected[name].dtype):
            wanted = f"{expected[name].dtype} {expected[name].shape}"
            raise ValueError(f"{name} is {array.dtype} {array.shape}, not {wanted}")
    require_finite(arrays)


def require_finite(arrays: Arrays) -> None:
    """Raise where a value is infinite or no number: it would spoil every sum that it enters.

    Raises:
        ValueError: with the name of the array.
    """
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds values that are not finite")


def mean_below(results: Sequence[Message], prefix: str, server_round: int) -> Arrays | None:
    """Mean of the arrays under `prefix/` over the results that have some, late ones weighing less; None if none has."""
    having = [result for result in results if below(result.arrays, prefix)]
    if not having:
        return None
    return weighted_mean([below(result.arrays, prefix) for result in having], weights_of(having, server_round))


def prefixed(arrays: Arrays, prefix: str) -> Arrays:
    """The same arrays under `prefix/name`."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def below(arrays: Arrays, prefix: str) -> Arrays:
    """Those under `prefix/`, without it."""
    start = f"{prefix}/"
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
