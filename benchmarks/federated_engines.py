"""What an engine costs in a round of federated learning, over a plain loop that calls the algorithm.

    python benchmarks/federated_engines.py            about 2 minutes on two cores
    python benchmarks/federated_engines.py --quick    fewer rounds, under 45 s
    python benchmarks/federated_engines.py --json rows.jsonl

FedAvg with two kinds of work: `tiny` (20 clients, a linear model, a few milliseconds each), where everything but the
training shows, and `cnn` (5 clients, 200 pictures of 28 × 28 each, two convolutions), where training counts. `plain
loop` is plan, local_update of each client in turn, and aggregate. `in-process` adds what every run needs: sampling,
checks of the replies, and a checkpoint on disk after each round. `simulation` is Flower's, with a worker for each core
and one thread each; the other two have one thread, so on two cores it can be faster than the loop. The first round is
left out, in which workers load their data. The figure is the median over rounds, and its ratio to the plain loop's.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from collegium.core.progress import set_quiet
from collegium.federated.algorithms.fedavg import FedAvg, FedAvgSettings
from collegium.federated.algorithms.one_model import World
from collegium.federated.client_side import ClientSide
from collegium.federated.client_state import ClientStates
from collegium.federated.flower.client_app import Member
from collegium.federated.flower.grid_engine import Terms
from collegium.federated.flower.simulation import simulate
from collegium.federated.in_process import InProcess
from collegium.federated.protocol import ClientData
from collegium.federated.rounds import Engine, RoundReport, RoundSettings, run_rounds

WORK = {  # clients, examples of each, shape of an input, network
    "tiny": (20, 40, (16,), {"kind": "linear"}),
    "cnn": (5, 200, (1, 28, 28), {"kind": "cnn", "hidden": 32}),
}
CLASSES = 10
Seconds = list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_quiet(True)
    rounds = 5 if options.quick else options.rounds
    rows = []
    for work in WORK:
        found = {name: measure(work, rounds) for name, measure in ENGINES.items()}
        plain = statistics.median(found["plain loop"])
        for name, seconds in found.items():
            median = statistics.median(seconds)
            ratio = median / plain
            rows.append(row_of(work, name, seconds, ratio, options.quick))
            print(f"{work:5} {name:11} {1000 * median:8.1f} ms a round, {ratio:6.2f} times the loop")
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


def row_of(work: str, name: str, seconds: Seconds, ratio: float, quick: bool) -> dict[str, object]:
    clients, examples, _, _ = WORK[work]
    return {
        "benchmark": "federated-engines",
        "method": name,
        "case": {"work": work, "clients": clients, "examples": examples, "cores": os.cpu_count(), "quick": quick},
        "random_seed": 0,
        "threads": 1,
        "seconds": seconds,
        "peak_bytes": None,
        "metrics": {"ratio_to_plain_loop": ratio},
        "versions": {package: version(package) for package in ("torch", "flwr", "ray")},
    }


def plain_loop(work: str, rounds: int) -> Seconds:
    """The algorithm without anything around it."""
    server, clients = make_algorithm(work), range(WORK[work][0])
    seconds = []
    for server_round in range(1, rounds + 2):
        start = time.perf_counter()
        tasks = server.plan(server_round, clients, {})
        server.aggregate(server_round, [server.local_update(t, data_of(work, t.client), {})[0] for t in tasks], [])
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def in_process(work: str, rounds: int) -> Seconds:
    with serving(work, rounds) as (serve, seconds, folder):
        numbers = range(WORK[work][0])
        serve(InProcess(make_algorithm(work), partial(data_of, work), lambda: numbers, ClientStates(folder)))
    return seconds[1:]


def simulation(work: str, rounds: int) -> Seconds:
    from federated_engines import member  # by its module's name, so that a worker imports it once

    clients = WORK[work][0]
    with serving(work, rounds) as (serve, seconds, folder):
        simulate(serve, partial(member, work, str(folder)), Terms(clients, ""), clients, deadline=60)
    return seconds[1:]


@contextmanager
def serving(work: str, rounds: int) -> Iterator[tuple[Callable[[Engine], None], Seconds, Path]]:
    """(the server's side, seconds of its rounds, a folder)."""
    settings = RoundSettings(rounds=rounds + 1, clients_per_round=WORK[work][0])
    seconds: Seconds = []
    last = [0.0]

    def after(_: RoundReport) -> None:
        now = time.perf_counter()
        seconds.append(now - last[0])
        last[0] = now

    with tempfile.TemporaryDirectory() as folder:

        def serve(engine: Engine) -> None:
            last[0] = time.perf_counter()
            run_rounds(make_algorithm(work), engine, settings, work, 0, Path(folder), after)

        yield serve, seconds, Path(folder) / "clients"


def make_algorithm(work: str) -> FedAvg:
    clients, _, shape, network = WORK[work]
    world = World(features=shape[-1], shape=shape, classes=CLASSES, num_clients=clients, random_seed=0)
    return FedAvg(world, FedAvgSettings.model_validate({"network": network}))


@cache
def data_of(work: str, client: int) -> ClientData:
    """Made-up examples."""
    _, examples, shape, _ = WORK[work]
    random = np.random.default_rng(client)
    inputs = random.normal(size=(examples, *shape)).astype(np.float32)
    features = inputs.reshape(examples, -1)[:, : shape[-1]]
    return ClientData(features, inputs, random.integers(CLASSES, size=examples))


def member(work: str, folder: str, node: Mapping[str, object], _: str) -> Member:
    """A client of the simulation, in a worker."""
    side = client_side(work, folder)
    shape = WORK[work][2]
    return Member(int(str(node["partition-id"])), shape[-1], shape, "", side.answer)


@cache
def client_side(work: str, folder: str) -> ClientSide:
    torch.set_num_threads(1)
    return ClientSide(make_algorithm(work), partial(data_of, work), ClientStates(Path(folder)))


ENGINES: dict[str, Callable[[str, int], Seconds]] = {
    "plain loop": plain_loop,
    "in-process": in_process,
    "simulation": simulation,
}

if __name__ == "__main__":
    main()
