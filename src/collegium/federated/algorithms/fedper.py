"""FedPer: clients share the body of a network, and each keeps a last layer of its own.

Arivazhagan, Aggarwal, Singh, Choudhary 2019, "Federated Learning with Personalization Layers", arXiv:1912.00818: both
parts are trained together; the body is averaged, the last layer never leaves the client.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from collegium.federated.algorithms.fedavg import FedAvg
from collegium.federated.algorithms.one_model import PersonalSettings
from collegium.federated.protocol import Arrays, ClientData, Message, sorted_results, weighted_mean, weights_of
from collegium.privacy.federated_ledger import trained_arrays
from collegium.privacy.ledger import Release

HEAD = 2  # arrays of the last layer, weight and bias; they come last


class FedPerSettings(PersonalSettings):
    """Settings of FedPer; a linear network has no body, and every client is alone with it."""

    name: Literal["fedper"] = "fedper"


class FedPer(FedAvg):
    """A shared body; `model` has beside it the last layer with which every client begins."""

    @property
    def body(self) -> list[str]:
        """Names of the shared arrays."""
        return list(self.model)[:-HEAD]

    @property
    def head(self) -> list[str]:
        """Names of a client's own arrays."""
        return list(self.model)[-HEAD:]

    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        shared = {name: self.model[name] for name in self.body}
        return [Message(client, server_round, dict(shared)) for client in clients]

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        trained = self.train(self.whole(task.arrays, local_state), data, task)
        shared = {name: trained[name] for name in self.body}
        return Message(task.client, task.server_round, shared), {name: trained[name] for name in self.head}

    def train(self, arrays: Arrays, data: ClientData, task: Message) -> Arrays:
        """Both parts together."""
        return self.trained(arrays, data, self.local, ("local", str(task.client), str(task.server_round)))

    def whole(self, body: Arrays, head: Arrays) -> Arrays:
        """A network of a shared body and a client's own last layer, or that with which it begins."""
        own = head or self.model
        return {name: body[name] if name in body else own[name] for name in self.model}

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        """The mean of the bodies."""
        ordered = sorted_results(results)
        if ordered:
            mean = weighted_mean([result.arrays for result in ordered], weights_of(ordered, server_round))
            self.model = self.whole(mean, self.model)

    def personalise(self, client: int, data: ClientData, local_state: Arrays) -> Arrays:
        """The body of now and the client's last layer, which is tuned alone."""
        shared = {name: self.model[name] for name in self.body}
        return self.tuned(self.whole(shared, local_state), client, data, only=self.head)

    def releases(self) -> list[Release]:
        return [trained_arrays("the body of the network")]
