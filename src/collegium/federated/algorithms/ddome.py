"""DDOME: a gate over a frozen common expert's features and K experts, trained jointly by clients that hold M of them.

METHODS §2; the round is that of FedJETs (Dun et al. 2023, arXiv:2306.08586). In a round a client gets the gate, scores
the experts on its own data, asks for its M best, trains gate and experts together, and sends both back. An expert is
averaged over the clients that trained it, the gate over all. **Anchor** clients, one an expert, always train their own
expert and are sampled more often: they give the experts their directions. An unseen client needs no training and no
label: each of its examples goes to the expert with the highest score.

Two named variants. `described`: the loss of the mixture over the M experts that the client holds, with the gate's
probabilities made to sum to 1 over these. `improved`: probabilities over all K, so that an anchor, which holds its own
expert, has a gradient for the gate; and on an anchor's data the gate is taught to choose that expert. METHODS §5
measured both.

A client sends which experts it wants, no scores and no number of examples. That choice tells roughly which classes it
has, since experts specialise; the ledger says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32
from pydantic import Field, model_validator
from torch import Tensor, nn

from collegium.core.random_streams import stream, stream_seed
from collegium.core.settings import Settings
from collegium.federated.algorithms.one_model import World
from collegium.federated.local_training import Batch, LocalSettings, as_batch, train_locally
from collegium.federated.networks import NetworkSettings, build_gate, load_parameters, parameters_of
from collegium.federated.protocol import (
    Algorithm,
    Arrays,
    ClientData,
    Message,
    below,
    prefixed,
    require_like,
    sorted_results,
    weighted_mean,
)


class DdomeSettings(Settings):
    """Settings of DDOME."""

    name: Literal["ddome"] = "ddome"
    variant: Literal["described", "improved"] = Field(
        default="improved",
        description="described = as published; improved = the gate's probabilities are over all experts, and anchors "
        "teach it",
    )
    num_experts: int = Field(default=5, ge=2, description="K")
    experts_per_client: int = Field(default=2, ge=1, description="M: experts that a client gets in a round")
    expert: NetworkSettings = NetworkSettings()
    gate_hidden: int = Field(default=0, ge=0, description="units of the gate's hidden layer; 0 = a linear gate")
    local: LocalSettings = LocalSettings()
    anchors: Literal["fixed", "none"] = Field(
        default="fixed", description="fixed = a client for each expert, for as long as it answers; none"
    )
    anchor_loss_weight: float = Field(
        default=1.0, ge=0, description="of the loss that teaches the gate an anchor's expert (improved)"
    )
    anchor_patience: int = Field(
        default=3, ge=1, description="rounds in a row in which an anchor may fail before another client takes its place"
    )
    inference: Literal["top-1", "mixture", "client"] = Field(
        default="top-1",
        description="top-1 = each example to its best expert; mixture = all experts, weighted; client = the two "
        "experts that the client's unlabelled examples like best on average",
    )

    @model_validator(mode="after")
    def _enough_experts(self) -> "DdomeSettings":
        if self.experts_per_client > self.num_experts:
            raise ValueError(f"experts_per_client: {self.experts_per_client} of num_experts: {self.num_experts}")
        return self


class Ddome(Algorithm):
    """Experts, their versions, the gate, and who is anchor of what."""

    def __init__(self, world: World, settings: DdomeSettings):
        self.world, self.settings = world, settings
        each = range(settings.num_experts)
        self.experts = [parameters_of(self._expert(index)) for index in each]
        self.gate = parameters_of(self._gate())
        self.versions = [0 for _ in each]  # rounds in which an expert was trained
        self.anchors: list[int | None] = [None for _ in each]  # client, by expert
        self.missed = [0 for _ in each]  # rounds in a row in which an anchor failed
        self.chosen = [0 for _ in each]  # by how many clients of the last round, as first choice

    def ask(self, server_round: int, clients: Sequence[int]) -> list[Message]:
        """The gate: which experts does a client want?"""
        self._elect(clients, server_round)
        return [Message(client, server_round, prefixed(self.gate, "gate")) for client in clients]

    def answer(self, question: Message, data: ClientData) -> Message:
        """All experts, best first, by the gate's mean probability on the client's examples."""
        gate = load_parameters(self._gate(), below(question.arrays, "gate"))
        with torch.no_grad():
            scores = torch.softmax(gate(as_batch(data).features), dim=1).mean(dim=0)
        wanted = torch.argsort(scores, descending=True, stable=True)[: self.settings.experts_per_client]
        return Message(question.client, question.server_round, {"wanted": wanted.numpy()})

    def check_answer(self, question: Message, answer: Message) -> None:
        """M different experts."""
        size = self.settings.experts_per_client
        require_like(answer.arrays, {"wanted": np.zeros(size, dtype=np.int64)})
        wanted = answer.arrays["wanted"].tolist()
        if len(set(wanted)) < size or not set(wanted) <= set(range(self.settings.num_experts)):
            raise ValueError(f"it wants experts {wanted}, not {size} of {self.settings.num_experts}")

    def plan(self, server_round: int, clients: Sequence[int], answers: Mapping[int, Message]) -> list[Message]:
        self.chosen = [0] * self.settings.num_experts
        tasks = []
        for client in clients:
            if client not in answers:
                continue
            wanted = [int(index) for index in answers[client].arrays["wanted"]]
            self.chosen[wanted[0]] += 1
            own = self.anchors.index(client) if client in self.anchors else -1
            held = self._held(wanted, own)
            experts = {name: array for index in held for name, array in self._named(index).items()}
            arrays = {**prefixed(self.gate, "gate"), **experts}
            tasks.append(Message(client, server_round, arrays, {"anchor_of": own}))
        return tasks

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        held = sorted({int(name.split("/")[1]) for name in task.arrays if name.startswith("expert/")})
        module = nn.ModuleDict({"gate": load_parameters(self._gate(), below(task.arrays, "gate"))})
        for index in held:
            module[str(index)] = load_parameters(self._expert(index), below(task.arrays, f"expert/{index}"))
        own = int(task.scalars["anchor_of"])
        random = stream(self.world.random_seed, "local", str(task.client), str(task.server_round))
        train_locally(module, data, self.settings.local, random, lambda batch: self._loss(module, held, own, batch))
        arrays = prefixed(parameters_of(module["gate"]), "gate")
        for index in held:
            arrays |= prefixed(parameters_of(module[str(index)]), f"expert/{index}")
        return Message(task.client, task.server_round, arrays), {}

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        """Average every expert over those that trained it; one that nobody trained keeps its value and version."""
        current = [result for result in sorted_results(results) if result.server_round == server_round]
        self._count_failures(current, failures)
        for index in range(self.settings.num_experts):
            trained = [found for result in current if (found := below(result.arrays, f"expert/{index}"))]
            if trained:
                self.experts[index] = weighted_mean(trained, [1.0] * len(trained))
                self.versions[index] += 1
        if current:
            self.gate = weighted_mean([below(result.arrays, "gate") for result in current], [1.0] * len(current))

    def predict(self, data: ClientData, local_state: Arrays | None = None) -> Float32[np.ndarray, "examples classes"]:
        """Zero-shot: the client's labels are not looked at."""
        batch = as_batch(data)
        with torch.no_grad():
            scores = torch.log_softmax(load_parameters(self._gate(), self.gate)(batch.features), dim=1)
            answers = torch.stack([self._answers(index, batch) for index in range(self.settings.num_experts)], dim=1)
            if self.settings.inference == "top-1":
                return answers[torch.arange(len(data)), scores.argmax(dim=1)].numpy()
            if self.settings.inference == "client":
                best = scores.exp().mean(dim=0).topk(min(2, self.settings.num_experts))
                scores = (best.values / best.values.sum()).log().expand(len(data), -1)
                answers = answers[:, best.indices]
            return torch.logsumexp(scores.unsqueeze(2) + answers, dim=1).numpy()

    def utilisation(self, data: ClientData) -> Float32[np.ndarray, " experts"]:
        """Share of a client's examples that each expert would get."""
        with torch.no_grad():
            best = load_parameters(self._gate(), self.gate)(as_batch(data).features).argmax(dim=1)
        counts = torch.bincount(best, minlength=self.settings.num_experts)
        return (counts / len(data)).numpy()

    def collapsed_to(self) -> int | None:
        """The expert that nine of ten clients of the last round wanted first; None where the choice is spread.

        A gate on features that do not tell the classes apart sends everybody to one expert (METHODS §2).
        """
        total = sum(self.chosen)
        most = max(range(len(self.chosen)), key=lambda index: self.chosen[index])
        return most if total >= 5 and self.chosen[most] >= 0.9 * total else None

    def state_dict(self) -> dict[str, Any]:
        experts = {name: array for index in range(len(self.experts)) for name, array in self._named(index).items()}
        values = {
            "versions": list(self.versions),
            "anchors": list(self.anchors),
            "missed": list(self.missed),
            "chosen": list(self.chosen),
        }
        return {"arrays": {**prefixed(self.gate, "gate"), **experts}, "values": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        arrays, values = state["arrays"], state["values"]
        self.gate = below(arrays, "gate")
        self.experts = [below(arrays, f"expert/{index}") for index in range(self.settings.num_experts)]
        self.versions, self.anchors = list(values["versions"]), list(values["anchors"])
        self.missed, self.chosen = list(values["missed"]), list(values["chosen"])

    def preferred(self) -> list[int]:
        """The anchors."""
        return [client for client in self.anchors if client is not None]

    def _loss(self, module: nn.ModuleDict, held: Sequence[int], own: int, batch: Batch) -> Tensor:
        """−log Σ_e π_e(z) p_e(y | x) over the experts that the client holds."""
        scores: Float[Tensor, "examples experts"] = module["gate"](batch.features)
        among = scores if self.settings.variant == "improved" else scores[:, held]
        shares = torch.log_softmax(among, dim=1)
        if self.settings.variant == "improved":
            shares = shares[:, held]
        rows = torch.arange(len(batch.labels))
        right = torch.stack(
            [torch.log_softmax(module[str(index)](batch.inputs), dim=1)[rows, batch.labels] for index in held], dim=1
        )
        loss = -torch.logsumexp(shares + right, dim=1).mean()
        if own >= 0 and self.settings.variant == "improved":
            target = torch.full_like(batch.labels, own)
            loss = loss + self.settings.anchor_loss_weight * nn.functional.cross_entropy(scores, target)
        return loss

    def _held(self, wanted: Sequence[int], own: int) -> list[int]:
        """The M experts of a client; of an anchor its own is always among them."""
        if own < 0 or own in wanted:
            return sorted(wanted)
        return sorted([own, *wanted[: self.settings.experts_per_client - 1]])

    def _elect(self, clients: Sequence[int], server_round: int) -> None:
        """Give every expert without an anchor one of the clients that are none yet."""
        if self.settings.anchors == "none":
            return
        free = [client for client in clients if client not in self.anchors]
        random = stream(self.world.random_seed, "anchors", str(server_round))
        for index, anchor in enumerate(self.anchors):
            if anchor is None and free:
                self.anchors[index] = free.pop(int(random.integers(len(free))))
                self.missed[index] = 0

    def _count_failures(self, current: Sequence[Message], failures: Sequence[int]) -> None:
        answered = {result.client for result in current}
        for index, anchor in enumerate(self.anchors):
            if anchor in answered:
                self.missed[index] = 0
            elif anchor in failures:
                self.missed[index] += 1
                if self.missed[index] >= self.settings.anchor_patience:
                    self.anchors[index] = None

    def _answers(self, index: int, batch: Batch) -> Float[Tensor, "examples classes"]:
        return torch.log_softmax(load_parameters(self._expert(index), self.experts[index])(batch.inputs), dim=1)

    def _named(self, index: int) -> Arrays:
        return prefixed(self.experts[index], f"expert/{index}")

    def _expert(self, index: int) -> nn.Module:
        return self.world.network(self.settings.expert, f"expert {index}")

    def _gate(self) -> nn.Module:
        seed = stream_seed(self.world.random_seed, "network", "gate")
        return build_gate(self.world.features, self.settings.num_experts, self.settings.gate_hidden, seed)
