"""The loop of rounds: sampling, silence, the quorum, and going on after a crash with the very same result."""

from dataclasses import replace

import numpy as np
import pytest

from collegium.core.errors import ArtifactError, RunError
from collegium.federated.algorithms.ddome import Ddome, DdomeSettings
from collegium.federated.algorithms.fedavg import FedAvg, FedAvgSettings
from collegium.federated.algorithms.scaffold import Scaffold, ScaffoldSettings
from collegium.federated.checkpoint import load_checkpoint
from collegium.federated.client_state import ClientStates
from collegium.federated.in_process import InProcess
from collegium.federated.participation import ScheduleSettings, active_clients, failing_clients, sample_clients
from collegium.federated.protocol import Message
from collegium.federated.rounds import RoundSettings, run_rounds

LINEAR = {"kind": "linear"}
ALGORITHMS = {
    "fedavg": lambda world: FedAvg(world, FedAvgSettings.model_validate({"network": LINEAR})),
    "scaffold": lambda world: Scaffold(world, ScaffoldSettings.model_validate({"network": LINEAR})),
    "ddome": lambda world: Ddome(world, DdomeSettings.model_validate({"num_experts": 3, "expert": LINEAR})),
}
SETTINGS = RoundSettings(rounds=6, clients_per_round=5)


class Crash(BaseException):
    """What kills a server: no handler may catch it."""


def run(algorithm, engine, folder, settings=SETTINGS, identity="run", after=None):
    run_rounds(algorithm, engine, settings, identity, 0, folder, after)
    return algorithm.state_dict()


def same(one, other):
    assert one["values"] == other["values"]
    assert one["arrays"].keys() == other["arrays"].keys()
    return all((one["arrays"][name] == other["arrays"][name]).all() for name in one["arrays"])


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("messages", [1, 7, 13, 22])
def test_a_server_that_was_killed_ends_with_the_state_of_one_that_was_not(name, messages, world, make_engine, tmp_path):
    make = ALGORITHMS[name]
    undisturbed = run(make(world), make_engine(make(world), "a"), tmp_path / "a-run")
    engine = make_engine(make(world), "b")
    answer, left = engine._answer, [messages]

    def dying(kind, message):
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        return answer(kind, message)

    engine._answer = dying
    with pytest.raises(Crash):
        run(make(world), engine, tmp_path / "b-run")
    engine._answer = answer
    assert same(run(make(world), engine, tmp_path / "b-run"), undisturbed)


def test_a_finished_run_does_nothing_again(world, make_engine, tmp_path):
    make = ALGORITHMS["fedavg"]
    first = run(make(world), make_engine(make(world)), tmp_path)
    assert same(run(make(world), make_engine(make(world)), tmp_path), first)
    reports = []
    run(make(world), make_engine(make(world)), tmp_path, after=reports.append)
    assert reports == []


def test_a_checkpoint_of_other_settings_is_refused(world, make_engine, tmp_path):
    make = ALGORITHMS["fedavg"]
    run(make(world), make_engine(make(world)), tmp_path)
    with pytest.raises(ArtifactError, match="other settings"):
        run(make(world), make_engine(make(world)), tmp_path, identity="another")


def test_a_damaged_checkpoint_is_named(world, make_engine, tmp_path):
    make = ALGORITHMS["fedavg"]
    run(make(world), make_engine(make(world)), tmp_path)
    file = tmp_path / "checkpoint" / "arrays.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ArtifactError, match="damaged"):
        run(make(world), make_engine(make(world)), tmp_path)


def test_one_failing_client_stops_no_other(world, clients, make_engine, tmp_path):
    def data_of(client):
        if client == 3:
            raise OSError("disk")
        return clients[client]

    make = ALGORITHMS["ddome"]
    reports = []
    run(make(world), make_engine(make(world), data_of=data_of), tmp_path, after=reports.append)
    assert [report.server_round for report in reports] == [1, 2, 3, 4, 5, 6]
    assert all(report.aggregated for report in reports)
    assert any(report.answered < report.asked for report in reports)


def test_below_the_quorum_nothing_is_aggregated(world, clients, make_engine, tmp_path):
    def data_of(client):
        if client:
            raise OSError("disk")
        return clients[client]

    make = ALGORITHMS["fedavg"]
    algorithm, reports = make(world), []
    before = dict(algorithm.model)
    run(algorithm, make_engine(make(world), data_of=data_of), tmp_path, after=reports.append)
    assert not any(report.aggregated for report in reports)
    assert all((algorithm.model[name] == before[name]).all() for name in before)


def test_silence_ends_the_run_and_it_goes_on_later(world, clients, make_engine, tmp_path):
    make, gone = ALGORITHMS["fedavg"], [True]

    def data_of(client):
        if gone[0]:
            raise OSError("offline")
        return clients[client]

    engine = make_engine(make(world), data_of=data_of)
    with pytest.raises(RunError, match="No client has answered for 3 rounds"):
        run(make(world), engine, tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint", _identity())[0] == 2
    gone[0] = False
    reports = []
    run(make(world), engine, tmp_path, after=reports.append)
    assert [report.server_round for report in reports] == [3, 4, 5, 6]


def _identity():
    from collegium.core.artifacts import canonical_json, sha256_of

    return sha256_of(canonical_json("run"))


def test_bytes_are_counted_each_way(world, clients, make_engine, tmp_path):
    make = ALGORITHMS["ddome"]
    reports = []
    algorithm = make(world)
    run(algorithm, make_engine(make(world)), tmp_path, after=reports.append)
    gate = sum(array.nbytes for array in algorithm.gate.values())
    expert = sum(array.nbytes for array in algorithm.experts[0].values())
    head = sum(array.nbytes for array in algorithm.common.values())
    for report in reports:
        assert report.bytes_down == report.asked * (
            2 * gate + head + 2 * expert
        )  # asked with the gate, then sent M = 2
        assert report.bytes_up == report.answered * (gate + head + 2 * expert + 2 * 8)  # two numbers of experts


def test_anchors_have_their_share_of_the_places():
    available, anchors = list(range(100)), [3, 50, 97]
    taken = [sample_clients(available, 10, anchors, 0.3, 0, number) for number in range(200)]
    assert all(len(set(one)) == len(one) == 10 for one in taken)
    assert all(set(anchors) <= set(one) for one in taken)
    without = [sample_clients(available, 10, [], 0.3, 0, number) for number in range(200)]
    assert 3 * 200 * 0.05 < sum(len(set(anchors) & set(one)) for one in without) < 3 * 200 * 0.16
    assert sample_clients(available, 10, anchors, 0.3, 0, 7) == taken[7]
    assert sample_clients([1, 2], 10, anchors, 0.3, 0, 1) == [1, 2]


def test_clients_join_as_the_rounds_go_by():
    schedule = ScheduleSettings(kind="joining", every=10, share=0.2, joins=0.4)
    there = {number: active_clients(range(10), schedule, 0, number) for number in (1, 10, 11, 20, 21, 31)}
    assert [len(there[number]) for number in (1, 10, 11, 20, 21, 31)] == [2, 2, 6, 6, 10, 10]
    assert set(there[1]) < set(there[11]) < set(there[21])
    assert there[1] == there[10]
    assert active_clients([], schedule, 0, 1) == []
    assert len(active_clients(range(10), schedule.model_copy(update={"share": 0.01}), 0, 1)) == 1


def test_pools_of_clients_take_turns():
    schedule = ScheduleSettings(kind="switching", every=10, share=0.3)
    pools = [active_clients(range(10), schedule, 0, number) for number in (1, 11, 21, 31)]
    assert [len(pool) for pool in pools] == [3, 3, 3, 3]
    assert len(set(pools[0]) | set(pools[1]) | set(pools[2])) == 9
    assert set(pools[3]) != set(pools[0])  # the tenth is in it
    assert set().union(*map(set, pools)) == set(range(10))
    assert pools[0] == active_clients(range(10), schedule, 0, 10)


def test_only_clients_that_are_there_are_asked_also_after_a_crash(world, make_engine, tmp_path):
    make = ALGORITHMS["fedavg"]
    schedule = ScheduleSettings(kind="switching", every=2, share=0.5)
    settings = SETTINGS.model_copy(update={"schedule": schedule})
    asked = {}

    def engine_that_notes(folder):
        engine = make_engine(make(world), folder)
        answer = engine._answer

        def noting(kind, message):
            asked.setdefault((folder, message.server_round), []).append(message.client)
            return answer(kind, message)

        engine._answer = noting
        return engine

    run(make(world), engine_that_notes("a"), tmp_path / "a-run", settings)
    for number in range(1, 7):
        assert asked["a", number] == active_clients(range(10), schedule, 0, number)
    run(make(world), engine_that_notes("b"), tmp_path / "b-run", settings.model_copy(update={"rounds": 3}))
    run(make(world), engine_that_notes("b"), tmp_path / "b-run", settings)
    assert all(asked["b", number] == asked["a", number] for number in range(1, 7))


@pytest.mark.parametrize("late_results", ["discard", "down-weight"])
def test_a_result_of_an_earlier_round_is_discarded_or_weighs_less(world, make_engine, tmp_path, late_results):
    """A client answers round 1 in round 4, three rounds late: its weight is 1/2."""
    algorithm = ALGORITHMS["fedavg"](world)
    engine = make_engine(algorithm)
    held_back = []

    def exchange(kind, messages, deadline):
        results = [Message(one.client, one.server_round, filled_with(one, one.server_round)) for one in messages]
        if messages[0].server_round == 1:
            held_back.append(Message(results[-1].client, 1, filled_with(messages[0], 100)))
            return results[:-1]
        if messages[0].server_round == 4:
            twice = [held_back[0], held_back[0]]  # the second one answers nothing
            other_shape = Message(results[0].client, 2, {"weight": np.zeros(3, np.float32)})
            not_ended = Message(results[0].client, 9, filled_with(messages[0], 1e6))  # by a server that was killed
            return [*twice, other_shape, not_ended, *results[:3]]
        return results

    def filled_with(message, value):
        return {name: np.full_like(array, value) for name, array in message.arrays.items()}

    engine.exchange = exchange
    reports = []
    settings = RoundSettings(rounds=4, clients_per_round=5, late_results=late_results)
    run(algorithm, engine, tmp_path, settings, after=reports.append)
    expected = {"discard": 4.0, "down-weight": (3 * 4 + 100 / 2) / 3.5}[late_results]
    assert algorithm.model["bias"] == pytest.approx(np.full(4, expected))
    late = int(late_results == "down-weight")
    assert [(report.answered, report.late) for report in reports] == [(4, 0), (5, 0), (5, 0), (3, late)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_costs_what_its_sampled_clients_cost_however_many_there_are(name, world, clients, tmp_path):
    """Data are loaded for sampled clients alone, and the server's state holds nothing for each client."""
    sizes, loaded = {}, {}
    for count in (20, 2000):
        many = replace(world, num_clients=count)
        touched = loaded[count] = []

        def data_of(client, touched=touched):
            touched.append(client)
            return clients[client % 10]

        folder = tmp_path / f"{count}"
        algorithm = ALGORITHMS[name](many)
        engine = InProcess(ALGORITHMS[name](many), data_of, lambda count=count: range(count), ClientStates(folder))
        state = run(algorithm, engine, folder)
        arrays = sum(array.nbytes for array in state["arrays"].values())
        numbers = sum(len(value) for value in state["values"].values())
        sizes[count] = (arrays, numbers)
    assert sizes[20] == sizes[2000]
    assert len(loaded[20]) == len(loaded[2000]) <= 6 * 5 * 2  # rounds · clients · messages
    assert len(set(loaded[2000])) <= 6 * 5


def test_states_of_clients_stay_on_disk_and_a_round_may_be_asked_for_again(tmp_path):
    states = ClientStates(tmp_path)
    assert states.before(5, 1) == {}
    states.keep(5, 1, {"c": np.ones(2, np.float32)})
    states.keep(5, 4, {"c": np.full(2, 4, np.float32)})
    assert states.before(5, 4)["c"].tolist() == [1, 1]  # the same as the first time
    assert states.before(5, 5)["c"].tolist() == [4, 4]
    states.keep(5, 9, {"c": np.full(2, 9, np.float32)})
    assert len(list((tmp_path / "5").iterdir())) == 2
    states.keep(6, 1, {})
    assert not (tmp_path / "6").exists()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_go_on_where_a_share_of_the_clients_always_fails(world, make_engine, tmp_path, name):
    settings = SETTINGS.model_copy(update={"schedule": ScheduleSettings(fails=0.25), "clients_per_round": 8})
    asked, reports = [], []
    engine = make_engine(ALGORITHMS[name](world))
    exchange = engine.exchange

    def watched(kind, messages, deadline):
        if kind == "task":
            asked.append({message.client for message in messages})
        return exchange(kind, messages, deadline)

    engine.exchange = watched
    run_rounds(ALGORITHMS[name](world), engine, settings, "failing", 0, tmp_path, reports.append)
    assert [(report.asked, report.answered, report.aggregated) for report in reports] == [
        (8, 6, True)
    ] * settings.rounds
    assert len({frozenset(clients) for clients in asked}) > 1  # other ones fail in every round
    assert failing_clients(range(8), 0.25, 0, 1) == failing_clients(range(8), 0.25, 0, 1)
    assert failing_clients([], 0.25, 0, 1) == failing_clients(range(8), 0.0, 0, 1) == set()
