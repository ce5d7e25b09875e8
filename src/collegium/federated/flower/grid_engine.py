"""The engine over a Flower grid: nodes that come and go become clients with stable numbers.

Every node is asked once who it is. A message goes to one node, and its reply is fetched by itself, so that a reply that
cannot be read costs no other client's. Flower's own `send_and_receive` fetches all at once and looks every three
seconds.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from collegium.core.errors import RunError
from collegium.core.progress import say
from collegium.federated.flower.client_app import PROFILE, TYPES, WHO
from collegium.federated.flower.records import from_records, to_records
from collegium.federated.protocol import Message
from collegium.federated.rounds import LATEST, Engine

SHORTEST, LONGEST, SHARE = 0.02, 1.0, 0.05  # seconds between two looks, and their share of the time waited so far
LARGEST = 10**8  # numbers in one input that a client may claim
LONGEST_REASON = 300  # characters of what another machine says


@dataclass(frozen=True)
class Terms:
    """What clients must have in common with the server; None = not known yet.

    Attributes:
        clients: numbers are below it.
        settings: hash of what both sides make the algorithm from.
        features, shape: of a client's examples.
    """

    clients: int
    settings: str
    features: int | None = None
    shape: tuple[int, ...] | None = None


class GridEngine(Engine):
    """Carries messages over any grid.

    Args:
        minimum_clients: clients are waited for until there are so many, or the deadline has passed.
        deadline: seconds for that.
        experiment: name of the run, under which clients keep their states.
        stop: set by whoever ends the run from outside.
    """

    def __init__(
        self,
        grid: Grid,
        terms: Terms,
        minimum_clients: int,
        deadline: float,
        experiment: str = "",
        stop: threading.Event | None = None,
    ):
        self.grid, self.terms, self.experiment = grid, terms, experiment
        self.minimum_clients, self.deadline = minimum_clients, deadline
        self.stop = stop or threading.Event()
        self._profiles: dict[int, tuple[int, tuple[int, ...]]] = {}  # client → its features and shape
        self._nodes: dict[int, int] = {}  # client → node
        self._refused: set[int] = set()  # nodes
        self._asked: dict[str, int] = {}  # question who they are → node
        self._late: dict[str, Message] = {}  # tasks whose deadline has passed

    def clients(self) -> list[int]:
        start, asked = time.monotonic(), set()
        while True:
            here = set(self.grid.get_node_ids())
            self._forget(here)
            for node in sorted(here - asked - self._refused - set(self._nodes.values()) - set(self._asked.values())):
                asked.add(node)
                self._ask(node)
            for question in list(self._asked):
                self._hear(question)
            expected = self._asked or len(here - self._refused) < self.minimum_clients
            late = time.monotonic() - start > self.deadline
            if len(self._nodes) >= self.minimum_clients or not expected or late:
                return sorted(self._nodes)
            self._wait(start)

    def exchange(self, kind: str, messages: Sequence[Message], deadline: float) -> list[Message]:
        """The answers that came in time, and to tasks also those that come now to earlier ones."""
        start, waiting = time.monotonic(), {}
        ttl = deadline * LATEST if kind == "task" else deadline
        for message in messages:
            content = to_records(message, self.experiment)
            name = self._send(self._nodes[message.client], content, TYPES[kind], ttl, message.server_round)
            if name is None:
                say(f"client {message.client} cannot be reached in round {message.server_round}")
            else:
                waiting[name] = message
        answers = []
        while True:
            answers += self._come(waiting)
            if not waiting or time.monotonic() - start > deadline:
                break
            self._wait(start)
        for message in waiting.values():
            say(f"client {message.client} has not answered in round {message.server_round} within {deadline:g} s")
        if kind == "task" and messages:
            answers += self._come(self._late)
            first = messages[0].server_round - LATEST
            self._late = {name: task for name, task in (self._late | waiting).items() if task.server_round > first}
        return sorted(answers, key=lambda answer: (answer.client, answer.server_round))

    def agree(self) -> Terms:
        """Fix features and shape as most clients have them, and refuse the others; the terms then.

        Raises:
            RunError: no client is there.
        """
        if not self._profiles:
            raise RunError("No client has said who it is.", do="look at the logs of the SuperNodes")
        (features, shape), _ = max(Counter(self._profiles.values()).items(), key=lambda item: (item[1], item[0]))
        self.terms = replace(self.terms, features=features, shape=shape)
        for client, profile in list(self._profiles.items()):
            if profile != (features, shape):
                self._refuse(self._nodes[client], f"client {client} has other inputs, {profile}")
        return self.terms

    def _come(self, waiting: dict[str, Message]) -> list[Message]:
        """The answers that are there; whoever has answered is no longer waited for."""
        answers = []
        for name, message in list(waiting.items()):
            content = self._fetch(name)
            if content is not None:
                del waiting[name]
                answers += self._read(content, message)
        return answers

    def _failed(self, who: str, error: Error) -> None:
        say(f"{who}: {(error.reason or f'error {error.code}')[:LONGEST_REASON]!r}")

    def _read(self, content: RecordDict | Error, message: Message) -> list[Message]:
        """One answer, or none."""
        if isinstance(content, Error):
            self._failed(f"client {message.client} failed in round {message.server_round}", content)
            return []
        try:
            return [from_records(content, message.client)]
        except Exception as error:  # whatever came, it is one client's
            say(f"client {message.client}: its reply of round {message.server_round} counts as none: {error!r}"[:500])
            return []

    def _ask(self, node: int) -> None:
        question = self._send(node, to_records(Message(-1, 0), self.experiment), WHO, self.deadline, 0)
        if question is not None:
            self._asked[question] = node

    def _hear(self, question: str) -> None:
        content = self._fetch(question)
        if content is None:
            return
        node = self._asked.pop(question)
        if isinstance(content, Error):
            self._failed(f"node {node} does not take part", content)
            return
        try:
            client, features, shape = self._checked(content)
        except ValueError as error:
            say(f"node {node} does not take part: {error}"[:500])
            return
        if client in self._nodes:
            self._refuse(node, f"client {client} is there already; two nodes must not have one number")
            return
        self._nodes[client], self._profiles[client] = node, (features, shape)

    def _checked(self, content: RecordDict) -> tuple[int, int, tuple[int, ...]]:
        profile = content.get(PROFILE)
        if not isinstance(profile, ConfigRecord):
            raise ValueError("it does not say who it is")
        client, features, shape = profile.get("client"), profile.get("features"), profile.get("shape")
        if type(client) is not int or not 0 <= client < self.terms.clients:
            raise ValueError(f"it says that it is client {client!r}; numbers are 0 to {self.terms.clients - 1}")
        if type(features) is not int or not isinstance(shape, list) or not all(type(size) is int for size in shape):
            raise ValueError(f"client {client} does not say what its inputs are")
        sizes = tuple(int(size) for size in shape)
        if not (0 < features <= LARGEST and sizes and min(sizes) > 0 and math.prod(sizes) <= LARGEST):
            raise ValueError(f"client {client} says that its inputs have the shape {shape}, its features {features}")
        if profile.get("settings") != self.terms.settings:
            raise ValueError(f"client {client} has another recipe")
        found = (features, sizes)
        if self.terms.features is not None and found != (self.terms.features, self.terms.shape):
            raise ValueError(f"client {client} has inputs {found}, not {(self.terms.features, self.terms.shape)}")
        return client, *found

    def _refuse(self, node: int, reason: str) -> None:
        say(f"node {node} does not take part: {reason}")
        self._refused.add(node)
        for client in [client for client, own in self._nodes.items() if own == node]:
            del self._nodes[client], self._profiles[client]

    def _forget(self, here: set[int]) -> None:
        """Nodes that are gone; whoever was refused may say again who it is, since a place may be free."""
        for client in [client for client, node in self._nodes.items() if node not in here]:
            say(f"client {client} is gone")
            del self._nodes[client], self._profiles[client]
            self._refused.clear()
        self._asked = {question: node for question, node in self._asked.items() if node in here}

    def _send(self, node: int, content: RecordDict, kind: str, deadline: float, server_round: int) -> str | None:
        message = FlowerMessage(content, node, kind, ttl=deadline, group_id=str(server_round))
        return next((name for name in self.grid.push_messages([message]) if name), None)

    def _fetch(self, name: str) -> RecordDict | Error | None:
        """What the reply holds; None = not yet."""
        try:
            reply = next(iter(self.grid.pull_messages([name])), None)
        except Exception as error:  # a reply that Flower itself cannot read
            return Error(ErrorCode.UNKNOWN, repr(error))
        if reply is None:
            return None
        return reply.error if reply.has_error() else reply.content

    def _wait(self, start: float) -> None:
        pause = min(LONGEST, max(SHORTEST, SHARE * (time.monotonic() - start)))
        if self.stop.wait(pause):
            raise RunError("The run was interrupted.", do="the same command goes on from the last round")
