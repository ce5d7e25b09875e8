"""IFCA: K models; a client takes the one with the lowest loss on its own examples, and trains that alone.

Ghosh, Chung, Yin, Ramchandran 2020, "An Efficient Framework for Clustered Federated Learning", arXiv:2006.04088,
algorithm 1 with averaging of models. Whoever has no examples to choose by gets the mean of the K answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32
from pydantic import Field
from scipy.special import logsumexp

from collegium.federated.algorithms.fedavg import FedAvg
from collegium.federated.algorithms.one_model import PersonalSettings, World
from collegium.federated.protocol import (
    Arrays,
    ClientData,
    Message,
    below,
    mean_below,
    prefixed,
    require_like,
    sorted_results,
)
from collegium.privacy.federated_ledger import federated_release, trained_arrays
from collegium.privacy.ledger import Release


class IfcaSettings(PersonalSettings):
    """Settings of IFCA."""

    name: Literal["ifca"] = "ifca"
    num_clusters: int = Field(default=4, ge=1, description="K: models, and clusters of clients")


class Ifca(FedAvg):
    """K models that start apart; `models` in place of `model`."""

    def __init__(self, world: World, settings: IfcaSettings):
        super().__init__(world, settings)
        self.models = [world.start(self.networks, f"cluster {index}") for index in range(settings.num_clusters)]

    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        arrays = self._named()
        return [Message(client, server_round, dict(arrays)) for client in clients]

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        models = [below(task.arrays, f"cluster/{index}") for index in range(len(self.models))]
        chosen = self._best(models, data)
        names = "local", str(task.client), str(task.server_round)
        trained = self.trained(models[chosen], data, self.local, names)
        return Message(task.client, task.server_round, prefixed(trained, f"cluster/{chosen}")), {}

    def check_result(self, task: Message, result: Message) -> None:
        """The arrays of one cluster."""
        chosen = {"/".join(name.split("/")[:2]) for name in result.arrays}
        if len(chosen) != 1:
            raise ValueError(f"it holds {sorted(chosen)[:5]}, not one cluster")
        prefix = chosen.pop()
        require_like(below(result.arrays, prefix), below(task.arrays, prefix))

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        """The mean of each cluster; one that nobody chose stays as it is."""
        ordered = sorted_results(results)
        means = [mean_below(ordered, f"cluster/{index}", server_round) for index in range(len(self.models))]
        self.models = [mean or model for mean, model in zip(means, self.models, strict=True)]

    def personalise(self, client: int, data: ClientData, local_state: Arrays) -> Arrays:
        return self.tuned(self.models[self._best(self.models, data)], client, data)

    def predict(self, data: ClientData, local_state: Arrays | None = None) -> Float32[np.ndarray, "examples classes"]:
        if local_state:
            return super().predict(data, local_state)
        answers = np.stack([super(Ifca, self).predict(data, model) for model in self.models])
        return (logsumexp(answers, axis=0) - np.log(len(self.models))).astype(np.float32)

    def releases(self) -> list[Release]:
        choice = federated_release(
            "which cluster it chose",
            "the losses of the models on the client's examples",
            "which other clients have examples like its own. The losses are not sent",
        )
        return [trained_arrays("the model of one cluster"), choice]

    def state_dict(self) -> dict[str, Any]:
        return {"arrays": self._named(), "values": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.models = [below(state["arrays"], f"cluster/{index}") for index in range(len(self.models))]

    def _best(self, models: Sequence[Arrays], data: ClientData) -> int:
        """The model with the lowest mean loss; of equal ones the first."""
        rows = np.arange(len(data))
        losses = [-super(Ifca, self).predict(data, model)[rows, data.labels].mean() for model in models]
        return int(np.argmin(np.nan_to_num(losses, nan=np.inf)))  # one that diverged is nobody's best

    def _named(self) -> Arrays:
        named = [prefixed(model, f"cluster/{index}") for index, model in enumerate(self.models)]
        return {name: array for one in named for name, array in one.items()}
