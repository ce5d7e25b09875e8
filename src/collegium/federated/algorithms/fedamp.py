"""FedAMP: the server keeps a model for every client, and sends each the mean of those that are like its own.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang 2021, "Personalized Cross-Silo Federated Learning on Non-IID Data",
arXiv:2007.03797, in the form for deep networks (HeurFedAMP, equation 9): client i gets

    u_i = ξ_ii w_i + Σ_j≠i ξ_ij w_j,   ξ_ij = (1 − ξ_ii) · softmax over j ≠ i of σ cos(w_i, w_j)

and trains F_i(w) + λ/2 ‖w − u_i‖² from u_i on. A client without a model yet gets the mean of all. The server's memory
and a checkpoint grow with the number of clients.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field
from scipy.special import softmax

from collegium.federated.algorithms.fedprox import FedProx, FedProxSettings
from collegium.federated.algorithms.one_model import World
from collegium.federated.protocol import Arrays, ClientData, Message, below, prefixed, sorted_results, weighted_mean
from collegium.privacy.federated_ledger import federated_release
from collegium.privacy.ledger import Release


class FedAmpSettings(FedProxSettings):
    """Settings of FedAMP; `proximal` is λ."""

    name: Literal["fedamp"] = "fedamp"  # pyright: ignore[reportIncompatibleVariableOverride]
    own_weight: float = Field(
        default=0.5, ge=0, le=1, description="ξ_ii: weight of a client's own model in what it gets"
    )
    sharpness: float = Field(default=10.0, ge=0, description="σ: 0 = all other clients weigh alike")


class FedAmp(FedProx):
    """A model for each client, on the server; `model` is their mean."""

    def __init__(self, world: World, settings: FedAmpSettings):
        super().__init__(world, settings)
        self.settings = settings
        self.models: dict[int, Arrays] = {}
        self.rounds: dict[int, int] = {}  # in which a client's model was trained

    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        return [Message(client, server_round, self._mixed(client)) for client in clients]

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        """Each result is its client's model."""
        for result in sorted_results(results):  # by client and round
            if result.server_round >= self.rounds.get(result.client, 0):  # a late one takes the place of no later one
                self.models[result.client], self.rounds[result.client] = result.arrays, result.server_round
        if self.models:
            self.model = weighted_mean(list(self.models.values()), [1.0] * len(self.models))

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        """The trained model is the client's own, too."""
        result, _ = super().local_update(task, data, local_state)
        return result, result.arrays

    def personalise(self, client: int, data: ClientData, local_state: Arrays) -> Arrays:
        """The client's own model w_i; of one that took part in no round the mean of all."""
        return self.tuned(local_state or self._mixed(client), client, data)

    def releases(self) -> list[Release]:
        kept = federated_release(
            "a model of each client's own, on the server",
            "the client's examples",
            "what trained weights can tell, of each client by itself: they are not averaged with others. Other clients "
            "get mixes of them; of two clients each can compute the other's",
        )
        return [*super().releases(), kept]

    def state_dict(self) -> dict[str, Any]:
        arrays = prefixed(self.model, "mean")
        for client, model in sorted(self.models.items()):
            arrays |= prefixed(model, f"client/{client}")
        return {
            "arrays": arrays,
            "values": {"rounds": [[client, self.rounds[client]] for client in sorted(self.models)]},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model = below(state["arrays"], "mean")
        self.rounds = dict(state["values"]["rounds"])
        self.models = {client: below(state["arrays"], f"client/{client}") for client in self.rounds}

    def _mixed(self, client: int) -> Arrays:
        """u_i."""
        others = [model for number, model in sorted(self.models.items()) if number != client]
        if client not in self.models or not others:
            return dict(self.models.get(client, self.model))
        own = self.models[client]
        flat = np.stack([_flat(model) for model in [own, *others]])
        flat /= np.linalg.norm(flat, axis=1, keepdims=True)
        weights = (1 - self.settings.own_weight) * softmax(self.settings.sharpness * (flat[1:] @ flat[0]))
        return weighted_mean([own, *others], [self.settings.own_weight, *weights.tolist()])


def _flat(model: Arrays) -> np.ndarray:
    return np.concatenate([model[name].ravel().astype(np.float64) for name in sorted(model)])
