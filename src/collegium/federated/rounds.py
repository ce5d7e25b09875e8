"""The loop of rounds: who takes part, what is sent, what to do with silence, and where to go on after a crash.

One loop for all engines. After every round the server's state is on disk; a server that was killed goes on with the
round that it was in, and ends with the same state as one that was not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from collegium.core.artifacts import canonical_json, sha256_of
from collegium.core.errors import RunError
from collegium.core.progress import progress_bar, say
from collegium.core.random_streams import stream
from collegium.core.settings import Settings
from collegium.federated.checkpoint import load_checkpoint, save_checkpoint
from collegium.federated.protocol import Algorithm, Message


class RoundSettings(Settings):
    """Settings of the loop; the same for all algorithms."""

    rounds: int = Field(default=100, ge=1, description="rounds in all")
    clients_per_round: int = Field(default=10, ge=1, description="clients that are asked in a round")
    anchor_share: float = Field(
        default=0.3, ge=0, le=1, description="share of a round's places that is for anchors, where there are any"
    )
    minimum_clients: int = Field(
        default=1, ge=1, description="clients without whom no round begins; a server waits for them, at most a deadline"
    )
    quorum: float = Field(
        default=0.5, gt=0, le=1, description="share of the asked clients below which a round is not aggregated"
    )
    deadline: float = Field(default=600.0, gt=0, description="seconds that a client has for a message")
    silence: int = Field(
        default=3, ge=1, description="rounds in a row without a single answer after which the run stops"
    )


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round.

    Attributes:
        asked, answered: numbers of clients.
        bytes_down, bytes_up: of the arrays that were sent to clients, and by them.
        aggregated: False below the quorum, and where nobody answered.
    """

    server_round: int
    asked: int
    answered: int
    bytes_down: int
    bytes_up: int
    aggregated: bool


class Engine(ABC):
    """Carries messages to clients and their answers back; in one process, in a simulation, or over a network."""

    @abstractmethod
    def clients(self) -> list[int]:
        """Stable numbers of the clients that can be reached now, sorted."""

    @abstractmethod
    def exchange(self, kind: str, messages: Sequence[Message], deadline: float) -> list[Message]:
        """The answers that came in time; whoever is missing failed.

        Args:
            kind: `question` or `task`.
        """


def run_rounds(
    algorithm: Algorithm,
    engine: Engine,
    settings: RoundSettings,
    identity: object,
    random_seed: int,
    folder: Path,
    after: Callable[[RoundReport], str | None] | None = None,
) -> None:
    """Run what is left of the rounds; the algorithm then holds the final state.

    Args:
        identity: all settings of the run, as JSON: a checkpoint of others is refused.
        folder: of the checkpoint.
        after: called after every round, with the algorithm's new state in place and before it is on disk: of a round
            that a killed server does again it is called again. Returns what the progress bar then says.

    Raises:
        RunError: nobody answered for too many rounds.
        ArtifactError: a checkpoint that is damaged, or of other settings.
    """
    name = sha256_of(canonical_json(identity))
    path = folder / "checkpoint"
    found = load_checkpoint(path, name)
    done = 0
    if found is not None:
        done, state = found
        algorithm.load_state_dict(state)
        say(f"goes on after round {done}")
    silent = 0
    with progress_bar("rounds", settings.rounds) as bar:
        bar.advance(done)
        for server_round in range(done + 1, settings.rounds + 1):
            report = _round(algorithm, engine, settings, server_round, random_seed)
            silent = 0 if report.answered else silent + 1
            if silent >= settings.silence:
                raise RunError(
                    f"No client has answered for {silent} rounds.",
                    got=f"{report.asked} were asked in round {server_round}",
                    do="look at the clients' logs; the same command goes on from the last round",
                )
            if after is not None and (told := after(report)) is not None:
                bar.describe(told)
            save_checkpoint(path, name, server_round, algorithm.state_dict())
            bar.advance()


def sample_clients(
    available: Sequence[int],
    count: int,
    anchors: Sequence[int],
    anchor_share: float,
    random_seed: int,
    server_round: int,
) -> list[int]:
    """The clients of a round, sorted: anchors for their share of the places, as many as there are, then others."""
    random = stream(random_seed, "clients", str(server_round))
    known = [client for client in available if client in set(anchors)]
    places = min(len(known), round(anchor_share * count))
    chosen = set(random.choice(known, size=places, replace=False).tolist()) if places else set()
    rest = [client for client in available if client not in chosen]
    drawn = random.choice(rest, size=min(count - places, len(rest)), replace=False).tolist() if rest else []
    return sorted({*chosen, *drawn})


def _round(
    algorithm: Algorithm, engine: Engine, settings: RoundSettings, server_round: int, random_seed: int
) -> RoundReport:
    available = engine.clients()
    if len(available) < settings.minimum_clients:
        say(f"round {server_round}: {len(available)} clients are there, {settings.minimum_clients} are needed")
        available = []
    clients = sample_clients(
        available,
        settings.clients_per_round,
        algorithm.preferred(),
        settings.anchor_share,
        random_seed,
        server_round,
    )
    questions = algorithm.ask(server_round, clients)
    replies = engine.exchange("question", questions, settings.deadline) if questions else []
    answers = _valid(questions, replies, algorithm.check_answer)
    tasks = algorithm.plan(server_round, clients, {answer.client: answer for answer in answers})
    replies = engine.exchange("task", tasks, settings.deadline) if tasks else []
    results = _valid(tasks, replies, algorithm.check_result)
    failures = sorted(set(clients) - {result.client for result in results})
    enough = len(results) >= max(1, settings.quorum * len(clients))
    if clients and not enough:
        say(f"round {server_round}: only {len(results)} of {len(clients)} clients answered; nothing is aggregated")
    algorithm.aggregate(server_round, results if enough else [], failures)
    return RoundReport(
        server_round=server_round,
        asked=len(clients),
        answered=len(results),
        bytes_down=sum(message.nbytes for message in [*questions, *tasks]),
        bytes_up=sum(message.nbytes for message in [*answers, *results]),
        aggregated=enough,
    )


def _valid(
    sent: Sequence[Message], replies: Sequence[Message], check: Callable[[Message, Message], None]
) -> list[Message]:
    """One reply of each client that was asked; a faulty or hostile one counts as none."""
    waiting = {message.client: message for message in sent}
    valid = []
    for reply in replies:
        asked = waiting.pop(reply.client, None)
        if asked is None:
            continue
        try:
            if reply.server_round != asked.server_round:
                raise ValueError(f"it is of round {reply.server_round}")
            check(asked, reply)
        except ValueError as error:
            say(f"client {reply.client}: its reply of round {asked.server_round} counts as none: {error}")
        else:
            valid.append(reply)
    return valid
