"""DDOME: who gets which experts, what is averaged over whom, anchors, and that it learns for clients never seen."""

import numpy as np
import pytest
from pydantic import ValidationError

from collegium.federated.algorithms.ddome import Ddome, DdomeSettings
from collegium.federated.algorithms.fedavg import FedAvg, FedAvgSettings
from collegium.federated.algorithms.one_model import World
from collegium.federated.protocol import ClientData, Message, below
from federated_world import CLASSES, DIM, make_client

SMALL = {
    "num_experts": 4,
    "experts_per_client": 2,
    "expert": {"kind": "linear"},
    "anchors": "fixed",
    "local": {"learning_rate": 0.2, "epochs": 2},
}


@pytest.fixture
def make(world):
    def make(**changes):
        return Ddome(world, DdomeSettings.model_validate({**SMALL, **changes}))

    return make


def play_round(algorithm, clients, server_round, chosen, silent=()):
    """One round in which some clients fail; the tasks and the results."""
    questions = algorithm.ask(server_round, chosen)
    answers = {one.client: algorithm.answer(one, clients[one.client]) for one in questions}
    tasks = algorithm.plan(server_round, chosen, answers)
    results = [algorithm.local_update(t, clients[t.client], {})[0] for t in tasks if t.client not in silent]
    algorithm.aggregate(server_round, results, [client for client in chosen if client in silent])
    return tasks, results


def experts_in(message):
    return sorted({int(name.split("/")[1]) for name in message.arrays if name.startswith("expert/")})


def test_a_client_gets_the_gate_and_the_experts_that_it_likes_best(make, clients):
    algorithm = make()
    algorithm.gate["weight"] = np.zeros_like(algorithm.gate["weight"])
    algorithm.gate["bias"] = np.array([0.0, 3.0, 1.0, 2.0], np.float32)
    algorithm.anchors = [90, 91, 92, 93]  # none of these clients
    tasks, results = play_round(algorithm, clients, 1, [0, 1, 2])
    for message in [*tasks, *results]:
        assert experts_in(message) == [1, 3]
        assert below(message.arrays, "gate").keys() == {"weight", "bias"}
    assert all(not result.scalars for result in results)  # no number of examples
    assert algorithm.chosen == [0, 3, 0, 0]


def test_an_anchor_always_gets_its_own_expert(make, clients):
    algorithm = make()
    algorithm.gate["weight"] = np.zeros_like(algorithm.gate["weight"])
    algorithm.gate["bias"] = np.array([0.0, 3.0, 1.0, 2.0], np.float32)
    algorithm.anchors = [7, 1, 92, 93]
    tasks, _ = play_round(algorithm, clients, 1, [1, 2, 7])
    assert {task.client: experts_in(task) for task in tasks} == {1: [1, 3], 2: [1, 3], 7: [0, 1]}
    assert {task.client: task.scalars["anchor_of"] for task in tasks} == {1: 1, 2: -1, 7: 0}


def test_an_expert_is_the_mean_over_those_that_trained_it_and_the_gate_over_all(make):
    algorithm = make()
    before = algorithm.state_dict()["arrays"]
    gate = {name: np.full_like(array, 1) for name, array in algorithm.gate.items()}
    values = {1: {0: 2.0, 1: 4.0}, 2: {1: 8.0}, 3: {1: 6.0, 3: 1.0}}
    results = []
    for client, held in values.items():
        arrays = {f"gate/{name}": client * array for name, array in gate.items()}
        for index, value in held.items():
            arrays |= {f"expert/{index}/{n}": np.full_like(a, value) for n, a in algorithm.experts[index].items()}
        results.append(Message(client, 5, arrays))
    algorithm.aggregate(5, [results[2], results[0], results[1]], [])
    assert [float(algorithm.experts[index]["bias"][0]) for index in (0, 1, 3)] == [2.0, 6.0, 1.0]
    assert all((algorithm.experts[2][n] == below(before, "expert/2")[n]).all() for n in algorithm.experts[2])
    assert algorithm.versions == [1, 1, 0, 1]  # the third keeps value and version
    assert float(algorithm.gate["bias"][0]) == 2.0


def test_a_late_result_weighs_less_in_gate_and_experts(make):
    algorithm = make()
    current = Message(1, 5, {f"gate/{name}": np.zeros_like(array) for name, array in algorithm.gate.items()})
    arrays = {f"gate/{name}": np.full_like(array, 3) for name, array in algorithm.gate.items()}
    arrays |= {f"expert/2/{name}": np.full_like(array, 7) for name, array in algorithm.experts[2].items()}
    algorithm.aggregate(5, [current, Message(1, 2, arrays)], [])
    assert algorithm.gate["bias"].tolist() == [1.0] * 4  # 3 · ½ / 1½
    assert float(algorithm.experts[2]["bias"][0]) == 7.0  # the only one that trained it


def test_anchors_are_elected_anew_after_their_term(make, clients):
    algorithm = make(anchors="re-elected", anchor_term=3)
    terms = {}
    for server_round in range(1, 8):
        chosen = list(range(5)) if server_round < 4 else list(range(5, 10))
        play_round(algorithm, clients, server_round, chosen)
        terms[server_round] = list(algorithm.anchors)
    assert terms[1] == terms[2] == terms[3]
    assert terms[4] == terms[5] == terms[6]
    assert set(terms[1]) <= set(range(5))
    assert set(terms[4]) <= set(range(5, 10))


def test_experts_start_from_one_model_with_noise(make):
    experts = make(variant="described", start="common", start_noise=0.1).experts
    weights = np.stack([expert["weight"] for expert in experts])
    assert len({weight.tobytes() for weight in weights}) == 4
    spread = weights.std(axis=0).mean() / np.sqrt((weights**2).mean())
    assert 0.05 < spread < 0.12
    scratch = np.stack([expert["weight"] for expert in make(variant="described").experts])
    assert scratch.std(axis=0).mean() / np.sqrt((scratch**2).mean()) > 0.5


def test_a_warm_start_is_fedavg_until_the_experts_part(make, world, clients):
    algorithm = make(variant="described", start="warm", warm_rounds=3, start_noise=0.05, inference="top-1")
    fedavg = FedAvg(world, FedAvgSettings.model_validate({"network": SMALL["expert"], "local": SMALL["local"]}))
    fedavg.model = dict(algorithm.experts[0])
    for server_round in range(1, 4):
        assert algorithm.ask(server_round, [0, 1, 2]) == []
        for one in (algorithm, fedavg):
            tasks = one.plan(server_round, [0, 1, 2], {})
            results = [one.local_update(task, clients[task.client], {})[0] for task in tasks]
            one.aggregate(server_round, results, [])
        if server_round < 3:
            data = make_client(77)
            assert (algorithm.predict(data) == fedavg.predict(data)).all()
    for expert in algorithm.experts:
        distance = np.sqrt(np.mean((expert["weight"] - fedavg.model["weight"]) ** 2))
        assert 0 < distance < 0.1 * np.sqrt(np.mean(fedavg.model["weight"] ** 2))
    tasks, _ = play_round(algorithm, clients, 4, [0, 1, 2])
    assert all(len(experts_in(task)) == 2 and below(task.arrays, "gate") for task in tasks)
    # what was trained before the experts parted is no longer a result of any of them
    before = [dict(expert) for expert in algorithm.experts]
    algorithm.aggregate(5, [Message(1, 3, {f"expert/0/{n}": 9 + a for n, a in before[0].items()})], [])
    assert all((algorithm.experts[0][name] == before[0][name]).all() for name in before[0])


def test_the_common_head_of_the_improved_variant_is_fedavg_whatever_the_experts_do(make, world, clients):
    algorithm = make(common={"kind": "linear", "reads": "features"})
    fedavg = FedAvg(world, FedAvgSettings.model_validate({"network": SMALL["expert"], "local": SMALL["local"]}))
    fedavg.model = dict(algorithm.common)
    data = make_client(77)
    np.testing.assert_allclose(algorithm.predict(data), fedavg.predict(data), atol=1e-6)  # corrections begin as nothing
    for server_round in range(1, 4):
        play_round(algorithm, clients, server_round, list(clients))
        tasks = fedavg.plan(server_round, list(clients), {})
        fedavg.aggregate(server_round, [fedavg.local_update(t, clients[t.client], {})[0] for t in tasks], [])
    for name in fedavg.model:
        np.testing.assert_allclose(algorithm.common[name], fedavg.model[name], atol=1e-5)
    assert np.abs(algorithm.predict(data) - fedavg.predict(data)).max() > 0.01  # experts have learnt to correct it


def test_a_warm_start_of_the_improved_variant_trains_the_head_alone(make, clients):
    algorithm = make(start="warm", warm_rounds=1)
    assert algorithm.ask(1, [0, 1]) == []
    before = dict(algorithm.common)
    tasks, results = play_round(algorithm, clients, 1, [0, 1])
    assert all(name.startswith("common/") for message in [*tasks, *results] for name in message.arrays)
    assert any((algorithm.common[name] != before[name]).any() for name in before)
    assert all(not expert["weight"].any() for expert in algorithm.experts)
    tasks, _ = play_round(algorithm, clients, 2, [0, 1])
    assert all(below(task.arrays, "gate") and experts_in(task) for task in tasks)


def test_experts_that_read_pictures_correct_a_head_on_the_gates_features():
    world = World(DIM, (3, 8, 8), CLASSES, 10, 0)
    settings = {"num_experts": 2, "expert": {"kind": "cnn", "hidden": 2}, "local": {"learning_rate": 0.2}}
    algorithm = Ddome(world, DdomeSettings.model_validate(settings))
    plain = make_client(0)
    pictures = np.random.default_rng(0).normal(size=(len(plain), 3, 8, 8)).astype(np.float32)
    data = {0: ClientData(plain.features, pictures, plain.labels)}
    play_round(algorithm, data, 1, [0])
    assert algorithm.common["0.weight"].shape == (64, DIM)
    assert algorithm.predict(data[0]).shape == (len(plain), CLASSES)


def test_anchors_are_elected_kept_and_replaced_when_they_fall_silent(make, clients):
    algorithm = make(anchor_patience=2)
    play_round(algorithm, clients, 1, list(range(6)))
    first = list(algorithm.anchors)
    assert len(set(first)) == 4
    assert set(first) <= set(range(6))
    assert algorithm.preferred() == first
    gone = first[0]
    for server_round in (2, 3):
        assert algorithm.anchors == first
        play_round(algorithm, clients, server_round, list(range(6)), silent=[gone])
    assert algorithm.anchors[0] is None
    play_round(algorithm, clients, 4, [6, 7, 8])
    assert algorithm.anchors[0] in (6, 7, 8)
    assert algorithm.anchors[1:] == first[1:]


def test_an_anchor_that_answers_again_is_kept(make, clients):
    algorithm = make(anchor_patience=2)
    play_round(algorithm, clients, 1, list(range(6)))
    first = list(algorithm.anchors)
    for server_round in range(2, 7):
        silent = [first[0]] if server_round % 2 else []
        play_round(algorithm, clients, server_round, list(range(6)), silent=silent)
    assert algorithm.anchors == first


@pytest.mark.parametrize("variant", ["described", "improved"])
@pytest.mark.parametrize("inference", ["top-1", "mixture", "client"])
def test_it_learns_for_clients_that_it_has_never_seen(make, clients, variant, inference):
    algorithm = make(variant=variant, inference=inference)
    for server_round in range(1, 31):
        play_round(algorithm, clients, server_round, list(clients))
    accuracies = []
    for number in range(4):
        unseen = make_client(1000 + number, classes=(number, (number + 1) % 4))
        accuracies.append((algorithm.predict(unseen).argmax(axis=1) == unseen.labels).mean())
    assert np.mean(accuracies) > 0.8


def test_an_answer_does_not_depend_on_labels(make, clients):
    algorithm = make()
    data = clients[0]
    blind = type(data)(data.features, data.inputs, np.zeros_like(data.labels))
    assert (algorithm.predict(data) == algorithm.predict(blind)).all()
    assert np.allclose(np.exp(algorithm.predict(data)).sum(axis=1), 1, atol=1e-5)


def test_anchors_teach_the_gate_only_in_the_improved_variant(make, clients):
    """Over one held expert the gate's probabilities sum to 1 whatever it says: without more it gets no gradient."""
    moved = {}
    for variant in ("described", "improved"):
        algorithm = make(variant=variant, experts_per_client=1)
        algorithm.anchors = [0, 91, 92, 93]
        before = algorithm.gate["bias"].copy()
        tasks, results = play_round(algorithm, clients, 1, [0])
        assert experts_in(tasks[0]) == [0]
        moved[variant] = below(results[0].arrays, "gate")["bias"] - before
    assert np.abs(moved["described"]).max() == 0
    assert moved["improved"][0] > 0
    assert (moved["improved"][1:] < 0).all()


def test_a_gate_that_sends_everybody_to_one_expert_is_noticed(make, clients):
    algorithm = make()
    algorithm.gate["weight"] = np.zeros_like(algorithm.gate["weight"])
    algorithm.gate["bias"] = np.array([0.0, 9.0, 0.0, 0.0], np.float32)
    play_round(algorithm, clients, 1, list(range(6)))
    assert algorithm.collapsed_to() == 1
    algorithm.chosen = [2, 2, 1, 1]
    assert algorithm.collapsed_to() is None
    algorithm.chosen = [0, 3, 0, 0]  # too few to tell
    assert algorithm.collapsed_to() is None


def test_utilisation_is_the_share_of_examples_by_expert(make, clients):
    algorithm = make()
    shares = algorithm.utilisation(clients[0])
    assert shares.sum() == pytest.approx(1)
    algorithm.gate["weight"] = np.zeros_like(algorithm.gate["weight"])
    algorithm.gate["bias"] = np.array([0.0, 9.0, 0.0, 0.0], np.float32)
    assert algorithm.utilisation(clients[0]).tolist() == [0, 1, 0, 0]


def test_more_experts_a_client_than_there_are_is_refused():
    with pytest.raises(ValidationError, match="experts_per_client: 5 of num_experts: 4"):
        DdomeSettings.model_validate({**SMALL, "experts_per_client": 5})
