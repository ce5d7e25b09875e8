"""What a client sends is what the ledger says, and what the ledger says of it is so."""

import numpy as np
import pytest
from pydantic import TypeAdapter

from collegium.federated.make_algorithm import ALGORITHMS, AlgorithmSettings, make_algorithm
from collegium.federated.protocol import below
from collegium.flow.collapse import CollapseAlarm
from collegium.privacy.federated_ledger import federated_ledger


def make(world, **settings):
    return make_algorithm(world, TypeAdapter(AlgorithmSettings).validate_python(settings))


def result_of(algorithm, clients, client=0):
    """What a client sends in its first round: (answer or None, result)."""
    answers = {one.client: algorithm.answer(one, clients[client]) for one in algorithm.ask(1, [client])}
    [task] = algorithm.plan(1, [client], answers)
    return answers.get(client), algorithm.local_update(task, clients[client], {})[0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_part_of_a_message_has_a_line(world, clients, name):
    algorithm = make(world, name=name)
    answer, result = result_of(algorithm, clients)
    lines = [entry.what for entry in federated_ledger(algorithm.releases())]
    known = {
        "cluster": "the model of one cluster",
        "gate": "gate",
        "expert": "expert",
        "common": "common head",
        "model": "model",
        "control": "control variate",
        "generator": "generator",
        "discriminator": "discriminator",
        "class_mean": "mean and deviation of each class",
        "class_scale": "mean and deviation of each class",
    }
    for part in {array.replace("/", ".").split(".")[0] for array in result.arrays}:
        assert any(known.get(part, "trained arrays: the ") in line for line in lines), part
    assert result.scalars == {}
    assert any("wants, best first" in line for line in lines) == (answer is not None)
    assert all(entry.epsilon == "infinity" for entry in algorithm.releases())


def test_scaffold_tells_the_number_of_steps_as_its_line_says(world, clients):
    local = {"batch_size": 7, "learning_rate": 0.1, "epochs": 2}
    algorithm = make(world, name="scaffold", network={"kind": "linear"}, local=local)
    [task] = algorithm.plan(1, [0], {})
    result, _ = algorithm.local_update(task, clients[0], {})
    moved = below(task.arrays, "model")["weight"] - below(result.arrays, "model")["weight"]
    told = np.median(moved / below(result.arrays, "control")["weight"]) / local["learning_rate"]
    assert told == pytest.approx(2 * np.ceil(len(clients[0]) / 7), rel=1e-4)
    assert any("number of steps exactly" in entry.reveals for entry in algorithm.releases())


def test_who_gets_all_experts_is_not_asked_which_it_wants(world, clients):
    algorithm = make(world, name="ddome", num_experts=3, experts_per_client=3)
    answer, result = result_of(algorithm, clients)
    assert answer is None
    assert {array.split("/")[1] for array in result.arrays if array.startswith("expert/")} == {"0", "1", "2"}


def test_where_nobody_is_asked_a_collapse_is_seen_in_where_examples_go(world, capsys):
    alarm = CollapseAlarm(make(world, name="ddome", num_experts=3, experts_per_client=3))
    for server_round, use in enumerate([[0.5, 0.3, 0.2], [0.05, 0.95, 0.0], None, [0.0, 0.9, 0.1], [0.4, 0.4, 0.2]]):
        alarm.look(server_round, use)
    assert capsys.readouterr().err.splitlines() == [
        "round 1: nine of ten examples go to expert 1; the gate has collapsed",
        "round 4: examples go to different experts again",
    ]
    warm = make(world, name="ddome", num_experts=3, experts_per_client=3, start="warm", warm_rounds=5)
    CollapseAlarm(warm).look(5, [1.0, 0.0, 0.0])  # the experts are one model still
    CollapseAlarm(make(world, name="fedavg")).look(1, [1.0])
    assert capsys.readouterr().err == ""
