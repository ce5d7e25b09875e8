"""Flower's records and grid: nothing from another machine is believed, and the rounds are those of one process."""

import io
from functools import partial

import cloudpickle
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage

from collegium.core.errors import RunError
from collegium.federated.algorithms.ddome import Ddome, DdomeSettings
from collegium.federated.algorithms.scaffold import Scaffold, ScaffoldSettings
from collegium.federated.client_side import ClientSide
from collegium.federated.client_state import ClientStates
from collegium.federated.flower.client_app import PROFILE, Member, make_client_app
from collegium.federated.flower.grid_engine import GridEngine, Terms
from collegium.federated.flower.records import from_records, to_records
from collegium.federated.protocol import Message
from collegium.federated.rounds import RoundSettings, run_rounds
from federated_world import DIM
from flower_grid import OneProcessGrid

LINEAR = {"kind": "linear"}
ALGORITHMS = {
    "scaffold": lambda world: Scaffold(world, ScaffoldSettings.model_validate({"network": LINEAR})),
    "ddome": lambda world: Ddome(world, DdomeSettings.model_validate({"num_experts": 3, "expert": LINEAR})),
}
SETTINGS = RoundSettings(rounds=5, clients_per_round=5)
TERMS = Terms(clients=10, settings="s")


def member(sides, config, experiment):
    number = config["client"]
    return Member(number, DIM, (DIM,), "s", sides[number].answer)


@pytest.fixture
def make_grid(world, clients, tmp_path):
    def make(make_algorithm, explain=True):
        states = ClientStates(tmp_path / "grid-clients")
        side = ClientSide(make_algorithm(world), clients.__getitem__, states)
        app = make_client_app(partial(member, dict.fromkeys(range(10), side)), explain)
        return OneProcessGrid({1000 - number: (app, {"client": number}) for number in range(10)})

    return make


def engine_of(grid, terms=TERMS, minimum=10, deadline=5.0):
    return GridEngine(grid, terms, minimum, deadline)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_over_a_grid_end_as_those_in_one_process(name, world, make_engine, make_grid, tmp_path):
    make = ALGORITHMS[name]
    plain, carried, reports = make(world), make(world), [[], []]
    run_rounds(plain, make_engine(make(world)), SETTINGS, "a", 0, tmp_path / "a", reports[0].append)
    run_rounds(carried, engine_of(make_grid(make)), SETTINGS, "a", 0, tmp_path / "b", reports[1].append)
    one, other = plain.state_dict(), carried.state_dict()
    assert one["values"] == other["values"]
    assert one["arrays"].keys() == other["arrays"].keys()
    assert all((one["arrays"][key] == other["arrays"][key]).all() for key in one["arrays"])
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.array(3.5),
        np.zeros((0, 4), np.float16),
        np.array([True, False]),
    ],
    ids=["matrix", "by column", "scalar", "empty", "bool"],
)
def test_a_message_comes_back_as_it_was(array):
    message = Message(7, 3, {"a/b": array}, {"n": 1, "x": 0.5, "s": "t", "b": True})
    found = from_records(to_records(message), 7)
    assert (found.client, found.server_round, found.scalars) == (7, 3, message.scalars)
    assert found.arrays["a/b"].dtype == array.dtype
    assert found.arrays["a/b"].shape == array.shape
    assert (found.arrays["a/b"] == array).all()
    assert found.arrays["a/b"].flags.writeable


def saved(array, **keywords):
    file = io.BytesIO()
    np.save(file, array, **keywords)
    return file.getvalue()


def claiming(shape, dtype="<f4"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(16)


def of_data(data):
    content = to_records(Message(0, 1))
    content["arrays"] = ArrayRecord({"a": Array("float32", (4,), "numpy.ndarray", data)})
    return content


def without(name):
    content = to_records(Message(0, 1))
    del content[name]
    return content


HOSTILE = {
    "pickle": of_data(saved(np.array([object()]), allow_pickle=True)),
    "text": of_data(saved(np.array(["a"]))),
    "record": of_data(saved(np.zeros(2, dtype=[("a", "f4"), ("b", "i8")]))),
    "size bomb": of_data(claiming("(1000000000000,)")),
    "negative": of_data(claiming("(-1, -4)")),
    "shorter": of_data(claiming("(3,)")),
    "no header": of_data(b"\x80\x04K\x01."),
    "nothing": of_data(b""),
    "deep header": of_data(claiming("(" * 50 + ")" * 50)),
    "no arrays": without("arrays"),
    "no scalars": without("scalars"),
    "no head": without("head"),
    "arrays of another kind": RecordDict({"arrays": MetricRecord({"a": 1}), "scalars": ConfigRecord()}),
    "round of bytes": RecordDict(
        {
            "arrays": ArrayRecord(),
            "scalars": ConfigRecord(),
            "head": ConfigRecord({"server_round": b"1", "experiment": ""}),
        }
    ),
    "list": RecordDict({"arrays": ArrayRecord(), "scalars": ConfigRecord({"a": [1, 2]})}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_records_are_refused(name):
    with pytest.raises(ValueError):  # noqa: PT011
        from_records(HOSTILE[name], 0)


def sending(content, message, context):
    return FlowerMessage(content, reply_to=message)


def liar(make_grid, replies):
    """A grid whose client 3 answers tasks with something else."""
    grid = make_grid(ALGORITHMS["ddome"])
    honest = grid.nodes[997][0]

    def app(message, context):
        reply = replies.get(message.metadata.message_type)
        return FlowerMessage(reply, reply_to=message) if reply is not None else honest(message, context)

    grid.nodes[997] = (app, {"client": 3})
    return grid


def poisoned(world, change):
    """The right names and shapes, with other values."""
    arrays = ALGORITHMS["ddome"](world).state_dict()["arrays"]
    return to_records(Message(9, 1, {name: change(array) for name, array in arrays.items()}))


EVERYBODY = RoundSettings(rounds=1, clients_per_round=10)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["query.question", "train.task"])
def test_a_hostile_reply_counts_as_none_and_stops_nobody(name, kind, world, make_grid, tmp_path, capsys):
    reports = []
    engine = engine_of(liar(make_grid, {kind: HOSTILE[name]}))
    run_rounds(ALGORITHMS["ddome"](world), engine, EVERYBODY, "a", 0, tmp_path, reports.append)
    assert [report.answered for report in reports] == [9]
    assert capsys.readouterr().err.count("client 3: its reply of round 1 counts as none") == 1


@pytest.mark.parametrize(
    ("kind", "reply", "reason"),
    [
        ("train.task", lambda world: poisoned(world, lambda array: array * np.float32("nan")), "arrays"),
        ("train.task", lambda world: to_records(Message(3, 2)), "of round 2"),
        ("train.task", lambda world: to_records(Message(3, 1)), "its arrays are"),
        ("query.question", lambda world: to_records(Message(3, 1, {"wanted": np.array([0, 9])})), "it wants experts"),
        ("query.question", lambda world: to_records(Message(3, 1, {"wanted": np.array([1, 1])})), "it wants experts"),
        ("query.question", lambda world: to_records(Message(3, 1, {"wanted": np.array(1)})), "wanted is"),
    ],
)
def test_a_reply_that_is_no_answer_counts_as_none(kind, reply, reason, world, make_grid, tmp_path, capsys):
    reports = []
    engine = engine_of(liar(make_grid, {kind: reply(world)}))
    run_rounds(ALGORITHMS["ddome"](world), engine, EVERYBODY, "a", 0, tmp_path, reports.append)
    assert [report.answered for report in reports] == [9]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("client 3: its reply")]
    assert len(said) == 1
    assert reason in said[0]


def test_values_that_are_not_finite_count_as_no_answer(world, clients, make_engine, tmp_path, capsys):
    make = ALGORITHMS["ddome"]
    engine = make_engine(make(world))
    answer = engine._answer

    def spoiling(kind, message):
        reply = answer(kind, message)
        if kind == "task" and message.client == 3:
            reply.arrays["gate/bias"][0] = np.inf
        return reply

    engine._answer = spoiling
    algorithm, reports = make(world), []
    run_rounds(algorithm, engine, EVERYBODY, "a", 0, tmp_path, reports.append)
    assert reports[0].answered == 9
    assert "gate/bias holds values that are not finite" in capsys.readouterr().err
    assert all(np.isfinite(array).all() for array in algorithm.state_dict()["arrays"].values())


def test_the_number_in_a_reply_is_not_believed(make_grid):
    grid = make_grid(ALGORITHMS["ddome"])
    engine = engine_of(grid)
    assert engine.clients() == list(range(10))
    content = to_records(Message(8, 1, {"x": np.ones(1)}, {"client": 8}))
    grid.nodes[997] = (partial(sending, content), {"client": 8})
    found = engine.exchange("task", [Message(3, 1)], 5.0)
    assert [message.client for message in found] == [3]


def test_of_two_nodes_with_one_number_the_first_stays(make_grid, capsys):
    grid = make_grid(ALGORITHMS["ddome"])
    grid.nodes[5000] = (grid.nodes[997][0], {"client": 3})
    engine = engine_of(grid)
    assert engine.clients() == engine.clients() == list(range(10))
    said = capsys.readouterr().err
    assert said.count("node 5000 does not take part: client 3 is there already") == 1
    del grid.nodes[997]  # now its place is free
    assert engine.clients() == list(range(10))


def test_nodes_come_and_go(make_grid, capsys):
    grid = make_grid(ALGORITHMS["ddome"])
    gone = grid.nodes.pop(997)
    engine = engine_of(grid, minimum=9)
    assert 3 not in engine.clients()
    grid.nodes[4] = gone
    assert 3 in engine.clients()
    assert len([m for m in grid.sent if m.metadata.message_type == "query"]) == 10  # nobody is asked twice
    del grid.nodes[4]
    assert 3 not in engine.clients()
    assert "client 3 is gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ({"client": 99}, "numbers are 0 to 9"),
        ({"client": -1}, "numbers are 0 to 9"),
        ({"client": True}, "numbers are 0 to 9"),
        ({"client": "3"}, "numbers are 0 to 9"),
        ({"features": 0}, "its features 0"),
        ({"shape": [10**6, 10**6]}, "have the shape"),
        ({"shape": []}, "have the shape"),
        ({"shape": [-2, -3]}, "have the shape"),
        ({"shape": ["6"]}, "does not say what its inputs are"),
        ({"settings": "other"}, "client 3 has another recipe"),
    ],
)
def test_a_node_that_does_not_fit_takes_no_part(make_grid, capsys, profile, reason):
    right = {"client": 3, "features": DIM, "shape": [DIM], "settings": "s"}
    content = RecordDict({PROFILE: ConfigRecord({**right, **profile})})
    grid = make_grid(ALGORITHMS["ddome"])
    grid.nodes[997] = (partial(sending, content), {})
    assert 3 not in engine_of(grid, minimum=9).clients()
    assert reason in capsys.readouterr().err


def test_inputs_are_those_of_most_clients(make_grid, capsys):
    grid = make_grid(ALGORITHMS["ddome"])
    right = {"client": 3, "features": DIM + 1, "shape": [DIM + 1], "settings": "s"}
    grid.nodes[997] = (partial(sending, RecordDict({PROFILE: ConfigRecord(right)})), {})
    engine = engine_of(grid, minimum=9)
    assert len(engine.clients()) == 10
    assert (engine.agree().features, engine.agree().shape) == (DIM, (DIM,))
    assert 3 not in engine.clients()
    assert capsys.readouterr().err.count("client 3 has other inputs") == 1


def test_without_a_client_there_is_nothing_to_agree_on(make_grid):
    with pytest.raises(RunError, match="No client has said who it is"):
        engine_of(OneProcessGrid({}), deadline=0.01).agree()


def test_a_silent_node_costs_a_deadline_and_no_more(world, make_grid, tmp_path, capsys):
    grid = make_grid(ALGORITHMS["ddome"])
    engine = engine_of(grid)
    engine.clients()
    grid.nodes[997] = (None, {})
    settings = RoundSettings(rounds=1, clients_per_round=10, deadline=0.05)
    reports = []
    run_rounds(ALGORITHMS["ddome"](world), engine, settings, "a", 0, tmp_path, reports.append)
    assert reports[0].answered == 9
    assert "client 3 has not answered in round 1 within 0.05 s" in capsys.readouterr().err


@pytest.mark.parametrize(("late_results", "late"), [("down-weight", 1), ("discard", 0)])
def test_a_reply_that_misses_its_deadline_comes_late(world, make_grid, tmp_path, capsys, late_results, late):
    grid = make_grid(ALGORITHMS["scaffold"])
    engine = engine_of(grid)
    engine.clients()
    grid.held = {1000}  # the node of client 0, in the first round
    reports = []

    def after(report):
        reports.append((report.answered, report.late))
        grid.held = set()

    settings = RoundSettings(rounds=3, clients_per_round=10, deadline=0.3, late_results=late_results)
    run_rounds(ALGORITHMS["scaffold"](world), engine, settings, "a", 0, tmp_path / "a", after)
    assert reports == [(9, 0), (10, late), (10, 0)]
    told = capsys.readouterr().err
    assert "client 0 has not answered in round 1" in told
    assert ("its reply of round 1 counts as none: nobody waits for it" in told) == (late == 0)


def test_too_few_clients_end_the_run(world, make_grid, tmp_path, capsys):
    grid = make_grid(ALGORITHMS["ddome"])
    for node in list(grid.nodes)[2:]:
        del grid.nodes[node]
    settings = RoundSettings(rounds=9, clients_per_round=5, minimum_clients=3)
    with pytest.raises(RunError, match="No client has answered for 3 rounds"):
        run_rounds(ALGORITHMS["ddome"](world), engine_of(grid, minimum=3, deadline=0.01), settings, "a", 0, tmp_path)
    assert "2 clients are there, 3 are needed" in capsys.readouterr().err


def failing(config, experiment):
    raise KeyError("Jo Smith, row 17")


@pytest.mark.parametrize("explain", [True, False])
def test_a_clients_error_tells_a_server_nothing_of_its_data(make_grid, explain, capsys):
    grid = make_grid(ALGORITHMS["ddome"])
    engine = engine_of(grid)
    engine.clients()
    grid.nodes[997] = (make_client_app(failing, explain), {})
    capsys.readouterr()
    assert engine.exchange("task", [Message(3, 1)], 5.0) == []
    reply = make_client_app(failing, explain)(grid.sent[-1], _context())
    assert ("Smith" in str(vars(reply.error))) == explain
    assert "client 3 failed in round 1" in capsys.readouterr().err


def _context():
    from flwr.app import Context

    return Context(1, 1, {}, RecordDict(), {})


def test_what_travels_to_a_worker_is_small():
    assert len(cloudpickle.dumps(make_client_app(failing, True))) < 4000
