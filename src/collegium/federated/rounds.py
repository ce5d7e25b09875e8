"""The loop of rounds: who takes part, what is sent, what to do with silence, and where to go on after a crash.

One loop for all engines. After every round the server's state is on disk; a server that was killed goes on with the
round that it was in, and ends with the same state as one that was not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from collegium.core.artifacts import canonical_json, sha256_of
from collegium.core.errors import RunError
from collegium.core.progress import progress_bar, say
from collegium.core.settings import Settings
from collegium.federated.checkpoint import load_checkpoint, save_checkpoint
from collegium.federated.participation import ScheduleSettings, active_clients, failing_clients, sample_clients
from collegium.federated.protocol import Algorithm, Message

LATEST = 10  # rounds after which a late result is no longer waited for


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
    late_results: Literal["discard", "down-weight"] = Field(
        default="discard",
        description="results of earlier rounds: not taken, or with the weight 1 / sqrt(1 + rounds late); a run that "
        "was killed loses those on their way",
    )
    schedule: ScheduleSettings = ScheduleSettings()
    deadline: float = Field(default=600.0, gt=0, description="seconds that a client has for a message")
    silence: int = Field(
        default=3, ge=1, description="rounds in a row without a single answer after which the run stops"
    )


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round.

    Attributes:
        asked, answered: numbers of clients.
        late: results of earlier rounds that came in and are not discarded.
        bytes_down, bytes_up: of the arrays that were sent to clients, and by them.
        aggregated: False below the quorum, and where nobody answered.
    """

    server_round: int
    asked: int
    answered: int
    late: int
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
        """The answers that came in time, and maybe late ones to earlier tasks; whoever is missing failed.

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
    earlier: list[Message] = []
    with progress_bar("rounds", settings.rounds) as bar:
        bar.advance(done)
        for server_round in range(done + 1, settings.rounds + 1):
            report = _round(algorithm, engine, settings, server_round, random_seed, earlier)
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


def _round(
    algorithm: Algorithm,
    engine: Engine,
    settings: RoundSettings,
    server_round: int,
    random_seed: int,
    earlier: list[Message],
) -> RoundReport:
    """One round; `earlier` are tasks whose results may come late, and is brought up to date."""
    available = engine.clients()
    if len(available) < settings.minimum_clients:
        say(f"round {server_round}: {len(available)} clients are there, {settings.minimum_clients} are needed")
        available = []
    clients = sample_clients(
        active_clients(available, settings.schedule, random_seed, server_round),
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
    failing = failing_clients(clients, settings.schedule.fails, random_seed, server_round)
    sent = [task for task in tasks if task.client not in failing]
    replies = engine.exchange("task", sent, settings.deadline) if sent else []
    received = _valid([*earlier, *tasks], replies, algorithm.check_result)
    results = [result for result in received if result.server_round == server_round]
    late = [result for result in received if result.server_round < server_round]
    if settings.late_results == "down-weight":
        earlier[:] = [task for task in [*earlier, *tasks] if task.server_round > server_round - LATEST]
    failures = sorted(set(clients) - {result.client for result in results})
    enough = len(results) >= max(1, settings.quorum * len(clients))
    if clients and not enough:
        say(f"round {server_round}: only {len(results)} of {len(clients)} clients answered; nothing is aggregated")
    algorithm.aggregate(server_round, received if enough else [], failures)
    return RoundReport(
        server_round=server_round,
        asked=len(clients),
        answered=len(results),
        late=len(late),
        bytes_down=sum(message.nbytes for message in [*questions, *tasks]),
        bytes_up=sum(message.nbytes for message in [*answers, *received]),
        aggregated=enough,
    )


def _valid(
    sent: Sequence[Message], replies: Sequence[Message], check: Callable[[Message, Message], None]
) -> list[Message]:
    """One reply to each message that was sent; a faulty or hostile one counts as none."""
    waiting = {(message.client, message.server_round): message for message in sent}
    valid = []
    for reply in replies:
        asked = waiting.pop((reply.client, reply.server_round), None)
        if asked is None:
            say(f"client {reply.client}: its reply of round {reply.server_round} counts as none: nobody waits for it")
            continue
        try:
            check(asked, reply)
        except ValueError as error:
            say(f"client {reply.client}: its reply of round {asked.server_round} counts as none: {error}")
        else:
            valid.append(reply)
    return valid
