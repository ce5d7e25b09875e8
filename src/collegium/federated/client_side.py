"""What a client does with a message: the same in one process, in a simulation and on a node of its own."""

from collections.abc import Callable
from dataclasses import dataclass

from collegium.federated.client_state import ClientStates
from collegium.federated.protocol import Algorithm, ClientData, Message


@dataclass(frozen=True)
class ClientSide:
    """The work of a client, or of several that are simulated together.

    Attributes:
        algorithm: made from the same settings as the server's.
        data_of: loads a client's data.
        states: where clients keep what is theirs.
    """

    algorithm: Algorithm
    data_of: Callable[[int], ClientData]
    states: ClientStates

    def answer(self, kind: str, message: Message) -> Message:
        """What the client sends back; its new private state is on disk before.

        Args:
            kind: `question` or `task`.
        """
        data = self.data_of(message.client)
        if kind == "question":
            return self.algorithm.answer(message, data)
        before = self.states.before(message.client, message.server_round)
        result, state = self.algorithm.local_update(message, data, before)
        self.states.keep(message.client, message.server_round, state)
        return result
