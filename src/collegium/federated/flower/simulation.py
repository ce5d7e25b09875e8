"""Flower's simulation on Ray: every client a virtual node, the work spread over one process for each core."""

import logging
import threading
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import copy_context
from importlib.util import find_spec

from flwr.app import Context, Error
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from collegium.core.errors import InputError, RunError
from collegium.federated.flower.client_app import MemberOf, make_client_app
from collegium.federated.flower.grid_engine import GridEngine, Terms
from collegium.federated.rounds import Engine

BACKEND = {
    "client_resources": {"num_cpus": 1},
    "init_args": {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL},
}


def simulate(
    serve: Callable[[Engine], None], member_of: MemberOf, terms: Terms, num_clients: int, deadline: float
) -> None:
    """Run the server's side in this process and the clients' sides in workers.

    Args:
        serve: runs the rounds over the engine that it is given.
        member_of: travels to the workers with every message, so it must be small; its node's configuration holds
            `partition-id`, from 0.
        num_clients: all of them are there from the first round on.
        deadline: seconds that clients have to say who they are.

    Raises:
        InputError: Ray is not installed.
        RunError: a worker died, or what `serve` raises.
    """
    if find_spec("ray") is None:
        raise InputError("The simulation needs Ray.", do="pip install 'collegium[federated]', or --engine in-process")
    stop, context = threading.Event(), copy_context()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        context.run(serve, SimulationEngine(grid, terms, num_clients, deadline, stop=stop))

    try:
        with _quiet_logs():
            # `flwr run` would take an app folder and a SuperLink beside this process, and could not hand anything back
            run_simulation(server, make_client_app(member_of, explain=True), num_clients, backend_config=BACKEND)
    finally:
        stop.set()


class SimulationEngine(GridEngine):
    """A grid whose workers are processes on this machine: one that dies is not replaced, and fails every message that
    it is given from then on, while Flower would report success."""

    def _failed(self, who: str, error: Error) -> None:
        if error.code == ErrorCode.UNKNOWN:  # no client's own error; those have a code
            raise RunError(
                "A worker of the simulation died.",
                got=f"{who}: {error.reason}"[:500],
                do="the same command goes on from the last round; where memory is short, with --engine in-process",
            )
        super()._failed(who, error)


@contextmanager
def _quiet_logs():
    """Flower logs every reply that failed with a traceback; the engine says it in one line."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
