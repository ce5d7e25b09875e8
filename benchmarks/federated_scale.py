"""A federation of many clients in one process: what a round costs must follow the sampled clients, not all of them.

    python benchmarks/federated_scale.py            100, 1,000 and 10,000 clients (a few minutes on one thread)
    python benchmarks/federated_scale.py --quick    100 and 1,000 clients, few rounds, Scaffold and DDOME, under 45 s

Heads over made-up features of 384 numbers, 20 clients a round with 100 examples each, K = 5 experts of which a client
gets M = 2. A client's examples are made when it is asked, as a real client's lie with the client, and its state (of
Scaffold) stays on disk. Each case runs in a process of its own, whose peak of resident memory is reported beside what
the process held before the first round.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from collegium.core.progress import set_quiet
from collegium.federated.algorithms.one_model import World
from collegium.federated.client_state import ClientStates
from collegium.federated.in_process import InProcess
from collegium.federated.make_algorithm import AlgorithmSettings, make_algorithm
from collegium.federated.protocol import ClientData
from collegium.federated.rounds import RoundSettings, run_rounds

DIM, CLASSES, EXAMPLES, PER_ROUND = 384, 10, 100, 20
ALGORITHMS: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "scaffold"},
    {"name": "ddome", "num_experts": 5, "experts_per_client": 2},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, help="default 50, with --quick 5")
    options = parser.parse_args()
    rounds = options.rounds or (5 if options.quick else 50)
    context = multiprocessing.get_context("spawn")
    rows = []
    print("| clients | algorithm | seconds a round | peak, MB | of that before the rounds, MB |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for clients in [100, 1000] if options.quick else [100, 1000, 10_000]:
        for algorithm in ALGORITHMS[1:] if options.quick else ALGORITHMS:
            with context.Pool(1) as pool:
                row = pool.apply(measure, (clients, algorithm, rounds))
            rows.append(row)
            seconds, found = statistics.median(row["seconds"]), row["metrics"]
            print(
                f"| {clients} | {algorithm['name']} | {seconds:.3f} | {row['peak_bytes'] / 1e6:.0f} "
                f"| {found['bytes_before'] / 1e6:.0f} |",
                flush=True,
            )
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


def measure(clients: int, algorithm: dict[str, Any], rounds: int) -> dict[str, Any]:
    """One case; the first round, which also warms up, is not among the seconds."""
    torch.set_num_threads(1)
    set_quiet(True)
    settings = TypeAdapter(AlgorithmSettings).validate_python(algorithm)
    world = World(features=DIM, shape=(DIM,), classes=CLASSES, num_clients=clients, random_seed=0)
    server, client_side = (make_algorithm(world, settings) for _ in range(2))
    times = []
    with tempfile.TemporaryDirectory() as folder:
        engine = InProcess(client_side, make_client, lambda: range(clients), ClientStates(Path(folder) / "clients"))
        before = _peak()
        run_rounds(
            server,
            engine,
            RoundSettings(rounds=rounds + 1, clients_per_round=PER_ROUND),
            "benchmark",
            0,
            Path(folder),
            lambda _: times.append(time.perf_counter()),
        )
    return {
        "benchmark": "federated_scale",
        "method": algorithm["name"],
        "case": {"clients": clients, "clients_per_round": PER_ROUND, "examples": EXAMPLES, "dim": DIM},
        "random_seed": 0,
        "threads": 1,
        "seconds": np.diff(times).tolist(),
        "peak_bytes": _peak(),
        "metrics": {"bytes_before": before},
        "versions": {name: version(name) for name in ("torch", "numpy")},
    }


def make_client(client: int) -> ClientData:
    """Two classes, the same examples each time."""
    random = np.random.default_rng(client)
    centres = np.random.default_rng(10**6).normal(size=(CLASSES, DIM)).astype(np.float32)
    labels = random.choice(random.choice(CLASSES, size=2, replace=False), size=EXAMPLES)
    features = centres[labels] + 3 * random.normal(size=(EXAMPLES, DIM)).astype(np.float32)
    return ClientData(features, features, labels)


def _peak() -> int:
    """Bytes; Linux counts in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
