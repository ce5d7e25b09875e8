"""Who takes part in a round: the clients that are there by a schedule, and those of them that are sampled."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from collegium.core.random_streams import stream, stream_seed
from collegium.core.settings import Settings


class ScheduleSettings(Settings):
    """Which clients are there as the rounds go by; for simulations of a federation that changes."""

    kind: Literal["all", "joining", "switching"] = Field(
        default="all",
        description="all = everybody from the first round; joining = some at first, others later; switching = one pool "
        "of clients after another, in a circle",
    )
    every: int = Field(default=100, ge=1, description="rounds until clients join, or until the pool is switched")
    share: float = Field(
        default=0.5, gt=0, le=1, description="share of the clients that is there at first (joining), or in a pool"
    )
    joins: float = Field(default=0.1, gt=0, le=1, description="share of the clients that joins each time")
    fails: float = Field(
        default=0.0, ge=0, lt=1, description="share of a round's clients that get their task and never answer"
    )


def active_clients(
    reachable: Sequence[int], schedule: ScheduleSettings, random_seed: int, server_round: int
) -> list[int]:
    """The clients that are there in a round, sorted; at least one where any is reachable.

    The order in which clients come is drawn from their numbers: a server that goes on after a crash finds the same one.
    """
    if schedule.kind == "all" or not reachable:
        return sorted(reachable)
    order = sorted(reachable, key=lambda client: stream_seed(random_seed, "schedule", str(client)))
    times = (server_round - 1) // schedule.every
    if schedule.kind == "joining":
        return sorted(order[: max(1, round((schedule.share + times * schedule.joins) * len(order)))])
    size = max(1, round(schedule.share * len(order)))
    return sorted(order[(times * size + place) % len(order)] for place in range(size))


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
    preferred = set(anchors)
    known = [client for client in available if client in preferred]
    places = min(len(known), round(anchor_share * count))
    chosen = set(random.choice(known, size=places, replace=False).tolist()) if places else set()
    rest = [client for client in available if client not in chosen]
    drawn = random.choice(rest, size=min(count - places, len(rest)), replace=False).tolist() if rest else []
    return sorted({*chosen, *drawn})


def failing_clients(clients: Sequence[int], fails: float, random_seed: int, server_round: int) -> set[int]:
    """Those of a round's clients that will not answer, other ones in every round."""
    random = stream(random_seed, "failing", str(server_round))
    return set(random.choice(clients, size=round(fails * len(clients)), replace=False).tolist()) if fails else set()
