"""Flower's simulation on Ray: a worker that dies ends the run with an error, and the run goes on from there."""

from functools import partial

import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")
pytest.importorskip("ray", reason="the extra `federated` is not installed")

from collegium.core.errors import RunError
from collegium.federated.client_state import ClientStates
from collegium.federated.flower.grid_engine import Terms
from collegium.federated.flower.simulation import simulate
from collegium.federated.in_process import InProcess
from collegium.federated.rounds import RoundSettings, run_rounds
from federated_world import make_client
from simulated_members import NUM_CLIENTS, make_algorithm, member

SETTINGS = RoundSettings(rounds=4, clients_per_round=NUM_CLIENTS)


def run(folder, deadly_round):
    algorithm = make_algorithm()
    serve = lambda engine: run_rounds(algorithm, engine, SETTINGS, "run", 0, folder)  # noqa: E731
    member_of = partial(member, str(folder / "clients"), deadly_round)
    simulate(serve, member_of, Terms(NUM_CLIENTS, ""), NUM_CLIENTS, 60.0)
    return algorithm


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ray leaves /dev/null open
def test_a_worker_that_is_killed_ends_the_run_and_the_same_command_goes_on(tmp_path):
    with pytest.raises(RunError, match="A worker of the simulation died"):
        run(tmp_path / "a", deadly_round=3)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["checkpoint"]
    algorithm = run(tmp_path / "a", deadly_round=0)
    other = make_algorithm()
    states = ClientStates(tmp_path / "b")
    engine = InProcess(make_algorithm(), make_client, lambda: range(NUM_CLIENTS), states)
    run_rounds(other, engine, SETTINGS, "run", 0, tmp_path / "b")
    assert all((algorithm.model[name] == other.model[name]).all() for name in other.model)
