"""DDOME: a gate over a frozen common expert's features and K experts, trained jointly by clients that hold M of them.

METHODS §2; the round is that of FedJETs (Dun et al. 2023, arXiv:2306.08586). In a round a client gets the gate, scores
the experts on its own data, asks for its M best, trains gate and experts together, and sends both back. An expert is
averaged over the clients that trained it, the gate over all. **Anchor** clients, one an expert, always train their own
expert and are sampled more often: they give the experts their directions. An unseen client needs no training and no
label: each of its examples goes to the expert with the highest score.

Two named variants.

* `described`: the loss of the mixture over the M experts that the client holds, with the gate's probabilities made to
  sum to 1 over these.
* `improved`: beside the experts all clients train one **common head** over the gate's features, with its own loss, as
  FedAvg does. An expert's logits are the head's plus its own, so experts learn what the head gets wrong and never pull
  it. On an anchor's data the gate is taught to choose the anchor's expert: that parts the experts.

Probabilities over all K experts, tried before, feed on themselves: training raises the experts that a client holds, it
holds those that the gate prefers, and soon all clients prefer the same one (docs/lab-notes.md).

A client sends which M experts it wants, best first, and then gate and experts as it trained them; no scores, no losses
and no number of examples. That choice tells roughly which classes it has, since experts specialise (docs/federated.md).
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
from collegium.federated.networks import Networks, NetworkSettings, build_gate, parameters_of, read_by
from collegium.federated.protocol import (
    Algorithm,
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


class DdomeSettings(Settings):
    """Settings of DDOME."""

    name: Literal["ddome"] = "ddome"
    variant: Literal["described", "improved"] = Field(
        default="improved",
        description="described = as published; improved = experts correct a common head that all clients train, and "
        "anchors teach the gate",
    )
    num_experts: int = Field(default=5, ge=2, description="K")
    experts_per_client: int = Field(default=2, ge=1, description="M: experts that a client gets in a round")
    expert: NetworkSettings = NetworkSettings()
    common: NetworkSettings = Field(
        default=NetworkSettings(reads="features"), description="the head that all clients train (improved)"
    )
    gate_hidden: int = Field(default=0, ge=0, description="units of the gate's hidden layer; 0 = a linear gate")
    local: LocalSettings = LocalSettings()
    start: Literal["scratch", "common", "warm"] = Field(
        default="scratch",
        description="of the experts: scratch = each random; common = copies of one, with noise; warm = copies, with "
        "noise, of a model that the first rounds train by FedAvg. Corrections (improved) begin as nothing; there warm "
        "= the first rounds train the common head alone",
    )
    start_noise: float = Field(
        default=0.1, ge=0, description="of copies: standard deviation, in units of each array's root mean square"
    )
    warm_rounds: int = Field(default=50, ge=1, description="rounds of FedAvg before the experts part (start: warm)")
    anchors: Literal["fixed", "re-elected", "none"] = Field(
        default="re-elected",
        description="a client for each expert. fixed = for as long as it answers, as published; re-elected = others "
        "every anchor_term rounds: the same few in every round pull what all train towards their classes; none",
    )
    anchor_term: int = Field(default=10, ge=1, description="rounds until anchors are elected anew (re-elected)")
    anchor_loss_weight: float = Field(
        default=1.0, ge=0, description="of the loss that teaches the gate an anchor's expert (improved)"
    )
    anchor_patience: int = Field(
        default=3, ge=1, description="rounds in a row in which an anchor may fail before another client takes its place"
    )
    inference: Literal["top-1", "mixture", "client"] = Field(
        default="mixture",
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
        self.gates = Networks(lambda: build_gate(world.features, settings.num_experts, settings.gate_hidden))
        self.networks = Networks(lambda: world.build(settings.expert))
        self.gate = self.gates.started(stream_seed(world.random_seed, "network", "gate"))
        self.heads = Networks(lambda: world.build(settings.common))
        self.common = world.start(self.heads, "common") if settings.variant == "improved" else {}
        firsts = [self._first(index) for index in each]
        self.experts = firsts if settings.start == "scratch" else self._copies(firsts[0])
        self.versions = [0 for _ in each]  # rounds in which an expert was trained
        self.anchors: list[int | None] = [None for _ in each]  # client, by expert
        self.missed = [0 for _ in each]  # rounds in a row in which an anchor failed
        self.chosen = [0 for _ in each]  # by how many clients of the last round, as first choice

    def ask(self, server_round: int, clients: Sequence[int]) -> list[Message]:
        """The gate: which experts does a client want? Nobody is asked where that makes no difference: while all experts
        are one model, and where a client gets all of them.
        """
        if self.warming(server_round):
            return []
        self._elect(clients, server_round)
        if self.sends_all:
            return []
        return [Message(client, server_round, prefixed(self.gate, "gate")) for client in clients]

    def answer(self, question: Message, data: ClientData) -> Message:
        """The best experts, best first, by the gate's mean probability on the client's examples."""
        gate = self.gates.filled(below(question.arrays, "gate"))
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
        if self.warming(server_round):
            first = prefixed(self.common, "common") or self._named(0)
            return [Message(client, server_round, dict(first), {"anchor_of": -1}) for client in clients]
        tasks = []
        for client in clients:
            if client in answers:
                wanted = [int(index) for index in answers[client].arrays["wanted"]]
                self.chosen[wanted[0]] += 1
            elif self.sends_all:
                wanted = list(range(self.settings.num_experts))
            else:
                continue
            own = self.anchors.index(client) if client in self.anchors else -1
            held = self._held(wanted, own)
            experts = {name: array for index in held for name, array in self._named(index).items()}
            arrays = {**prefixed(self.gate, "gate"), **prefixed(self.common, "common"), **experts}
            tasks.append(Message(client, server_round, arrays, {"anchor_of": own}))
        return tasks

    def local_update(self, task: Message, data: ClientData, local_state: Arrays) -> tuple[Message, Arrays]:
        held = sorted({int(name.split("/")[1]) for name in task.arrays if name.startswith("expert/")})
        parts: dict[str, nn.Module] = {}
        for name, networks in (("gate", self.gates), ("common", self.heads)):
            if arrays := below(task.arrays, name):
                parts[name] = networks.filled(arrays)
        for index in held:
            parts[f"expert/{index}"] = self.networks.filled(below(task.arrays, f"expert/{index}"), index)
        own = int(task.scalars["anchor_of"])
        random = stream(self.world.random_seed, "local", str(task.client), str(task.server_round))
        module = nn.ModuleList(parts.values())
        train_locally(module, data, self.settings.local, random, lambda batch: self._loss(parts, held, own, batch))
        trained: Arrays = {}
        for name, part in parts.items():
            trained |= prefixed(parameters_of(part), name)
        return Message(task.client, task.server_round, trained), {}

    def aggregate(self, server_round: int, results: Sequence[Message], failures: Sequence[int]) -> None:
        """Average every expert over those that trained it; one that nobody trained keeps its value and version."""
        warming = self.warming(server_round)
        ordered = [one for one in sorted_results(results) if self.warming(one.server_round) == warming]
        self._count_failures(ordered, failures)
        for index in range(self.settings.num_experts):
            found = mean_below(ordered, f"expert/{0 if warming else index}", server_round)
            if found is not None:
                self.experts[index] = found
                self.versions[index] += 1
        self.gate = mean_below(ordered, "gate", server_round) or self.gate
        self.common = mean_below(ordered, "common", server_round) or self.common
        if warming and not self.warming(server_round + 1):
            self.experts = self._copies(self.experts[0])

    def predict(self, data: ClientData, local_state: Arrays | None = None) -> Float32[np.ndarray, "examples classes"]:
        """Zero-shot: the client's labels are not looked at."""
        batch = as_batch(data)
        with torch.no_grad():
            scores = torch.log_softmax(self.gates.filled(self.gate)(batch.features), dim=1)
            base = self._base(self.heads.filled(self.common), batch) if self.common else 0.0
            read = read_by(self.settings.expert, batch)
            logits = torch.stack([self.networks.filled(one)(read) + base for one in self.experts], dim=1)
            answers = torch.log_softmax(logits, dim=2)
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
            best = self.gates.filled(self.gate)(as_batch(data).features).argmax(dim=1)
        counts = torch.bincount(best, minlength=self.settings.num_experts)
        return (counts / len(data)).numpy()

    def collapsed_to(self) -> int | None:
        """The expert that nine of ten clients of the last round wanted first; None where the choice is spread, or where
        nobody was asked.

        A gate on features that do not tell the classes apart sends everybody to one expert (METHODS §2).
        """
        total = sum(self.chosen)
        most = max(range(len(self.chosen)), key=lambda index: self.chosen[index])
        return most if total >= 5 and self.chosen[most] >= 0.9 * total else None

    def releases(self) -> list[Release]:
        networks = "gate, experts, common head" if self.settings.variant == "improved" else "gate, experts"
        size, of = self.settings.experts_per_client, self.settings.num_experts
        choice = federated_release(
            f"which {size} of {of} experts it wants, best first",
            "the gate's mean probabilities on the client's examples; one example may turn the order",
            "roughly which classes the client has, since experts specialise, and who else has them. Probabilities and "
            "scores are not sent",
        )
        return [trained_arrays(networks), *([] if self.sends_all else [choice])]

    def state_dict(self) -> dict[str, Any]:
        experts = {name: array for index in range(len(self.experts)) for name, array in self._named(index).items()}
        values = {
            "versions": list(self.versions),
            "anchors": list(self.anchors),
            "missed": list(self.missed),
            "chosen": list(self.chosen),
        }
        arrays = {**prefixed(self.gate, "gate"), **prefixed(self.common, "common"), **experts}
        return {"arrays": arrays, "values": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        arrays, values = state["arrays"], state["values"]
        self.gate, self.common = below(arrays, "gate"), below(arrays, "common")
        self.experts = [below(arrays, f"expert/{index}") for index in range(self.settings.num_experts)]
        self.versions, self.anchors = list(values["versions"]), list(values["anchors"])
        self.missed, self.chosen = list(values["missed"]), list(values["chosen"])

    @property
    def sends_all(self) -> bool:
        """Whether a client gets all experts, and is not asked which it wants."""
        return self.settings.experts_per_client == self.settings.num_experts

    def warming(self, server_round: int) -> bool:
        """Whether all experts are still one model."""
        return self.settings.start == "warm" and server_round <= self.settings.warm_rounds

    def preferred(self) -> list[int]:
        """The anchors."""
        return [client for client in self.anchors if client is not None]

    def _loss(self, parts: Mapping[str, nn.Module], held: Sequence[int], own: int, batch: Batch) -> Tensor:
        """−log Σ_e π_e(z) p_e(y | x) over the experts that the client holds, and what the variant adds."""
        loss, base = torch.zeros(()), 0.0
        if "common" in parts:
            common = self._base(parts["common"], batch)
            loss, base = nn.functional.cross_entropy(common, batch.labels), common.detach()
        if not held:
            return loss
        read = read_by(self.settings.expert, batch)
        logits = [parts[f"expert/{index}"](read) + base for index in held]
        losses = [nn.functional.cross_entropy(one, batch.labels, reduction="none") for one in logits]
        right = -torch.stack(losses, dim=1)
        if "gate" not in parts:
            return -right.mean()
        scores: Float[Tensor, "examples experts"] = parts["gate"](batch.features)
        loss = loss - torch.logsumexp(torch.log_softmax(scores[:, held], dim=1) + right, dim=1).mean()
        if own >= 0 and self.settings.variant == "improved":
            target = torch.full_like(batch.labels, own)
            loss = loss + self.settings.anchor_loss_weight * nn.functional.cross_entropy(scores, target)
        return loss

    def _base(self, head: nn.Module, batch: Batch) -> Float[Tensor, "examples classes"]:
        """The logits that experts correct."""
        return head(read_by(self.settings.common, batch))

    def _held(self, wanted: Sequence[int], own: int) -> list[int]:
        """The M experts of a client; of an anchor its own is always among them."""
        if own < 0 or own in wanted:
            return sorted(wanted)
        return sorted([own, *wanted[: self.settings.experts_per_client - 1]])

    def _elect(self, clients: Sequence[int], server_round: int) -> None:
        """Give every expert without an anchor one of the clients that are none yet."""
        if self.settings.anchors == "none":
            return
        if self.settings.anchors == "re-elected" and (server_round - 1) % self.settings.anchor_term == 0:
            self.anchors = [None for _ in self.anchors]
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

    def _first(self, index: int) -> Arrays:
        """What an expert begins as; of a correction the last layer (its weight and bias come last) is 0."""
        if self.settings.variant == "described":
            return self.world.start(self.networks, f"expert {index}")
        found = self.networks.started(stream_seed(self.world.random_seed, "network", f"expert {index}"))
        return {**found, **{name: np.zeros_like(found[name]) for name in list(found)[-2:]}}

    def _copies(self, arrays: Arrays) -> list[Arrays]:
        """The same parameters for every expert, each with small noise of its own: equal ones would never part."""
        copies = []
        for index in range(self.settings.num_experts):
            random = stream(self.world.random_seed, "noise", f"expert {index}")
            scales = {name: self.settings.start_noise * np.sqrt(np.mean(array**2)) for name, array in arrays.items()}
            copies.append(
                {
                    name: array + (scales[name] * random.standard_normal(array.shape)).astype(array.dtype)
                    for name, array in arrays.items()
                }
            )
        return copies

    def _named(self, index: int) -> Arrays:
        return prefixed(self.experts[index], f"expert/{index}")
