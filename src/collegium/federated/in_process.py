"""The engine for one process: clients are functions of their data, one after the other."""

from collections.abc import Callable, Sequence

from collegium.core.progress import say
from collegium.federated.client_side import ClientSide
from collegium.federated.client_state import ClientStates
from collegium.federated.protocol import Algorithm, ClientData, Message
from collegium.federated.rounds import Engine


class InProcess(Engine):
    """Simulates clients in turn; only the data of the one at work are in memory.

    Args:
        algorithm: the clients' side of it; made from the same settings as the server's.
        data_of: loads a client's data.
        available: numbers of the clients, as they are now.
        states: where clients keep what is theirs.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data_of: Callable[[int], ClientData],
        available: Callable[[], Sequence[int]],
        states: ClientStates,
    ):
        self.available = available
        self._answer = ClientSide(algorithm, data_of, states).answer

    def clients(self) -> list[int]:
        return sorted(self.available())

    def exchange(self, kind: str, messages: Sequence[Message], deadline: float) -> list[Message]:
        answers = []
        for message in messages:
            try:
                answers.append(self._answer(kind, message))
            except Exception as error:  # one client's fault stops no other
                say(f"client {message.client} failed in round {message.server_round}: {type(error).__name__}: {error}")
        return answers
