"""Personalised baselines: what each of them keeps, shares and computes."""

import numpy as np
import pytest
from pydantic import TypeAdapter

from collegium.federated.make_algorithm import AlgorithmSettings, make_algorithm
from collegium.federated.protocol import ClientData, Message, below
from federated_world import CLASSES, make_client

PERSONAL = ("local-only", "fedper", "fedrep", "ditto", "ifca", "fedamp")
FULL = {"learning_rate": 0.1, "batch_size": 10_000}  # the order of the examples plays no part
MLP = {"kind": "mlp", "hidden": 8}


def make(world, name, **settings):
    values = {"name": name, "network": MLP, "local": FULL, **settings}
    return make_algorithm(world, TypeAdapter(AlgorithmSettings).validate_python(values))


def play(algorithm, clients, rounds, states=None):
    """All clients in every round; (states, all messages that left a client)."""
    states, sent = states or {number: {} for number in clients}, []
    for server_round in range(1, rounds + 1):
        results = []
        for task in algorithm.plan(server_round, list(clients), {}):
            result, states[task.client] = algorithm.local_update(task, clients[task.client], states[task.client])
            algorithm.check_result(task, result)
            results.append(result)
        algorithm.aggregate(server_round, results, [])
        sent += results
    return states, sent


def renamed(client, data):
    """Every second client calls the classes by other names."""
    return data if client % 2 else ClientData(data.features, data.inputs, (data.labels + 2) % CLASSES)


def mean_accuracy(algorithm, clients, states):
    """On new examples of every client's own classes."""
    found = []
    for client, data in clients.items():
        asked = renamed(client, make_client(1000 + client, classes=(client % CLASSES, (client + 1) % CLASSES)))
        answers = algorithm.predict(asked, algorithm.personalise(client, data, states[client]))
        found.append((answers.argmax(axis=1) == asked.labels).mean())
    return np.mean(found)


@pytest.mark.parametrize("name", PERSONAL)
def test_clients_for_whom_classes_have_other_names_are_answered_by_what_they_made_for_themselves(world, clients, name):
    own = {client: renamed(client, data) for client, data in clients.items()}
    local = {"learning_rate": 0.3, "epochs": 3}
    algorithm, single = make(world, name, local=local, personal_epochs=10), make(world, "fedavg", local=local)
    states, _ = play(algorithm, own, 15)
    unknown, _ = play(single, own, 15)
    assert mean_accuracy(algorithm, own, states) > 0.85
    assert mean_accuracy(single, own, unknown) < 0.8  # one model for all is right for some of them


@pytest.mark.parametrize("name", PERSONAL)
def test_a_checkpoint_holds_all_that_the_server_knows(world, clients, name):
    algorithm, again = make(world, name), make(world, name)
    states, _ = play(algorithm, clients, 3)
    again.load_state_dict(algorithm.state_dict())
    data = clients[0]
    for client in (0, 99):  # one that took part, and a newcomer
        own = [one.personalise(client, data, states.get(client, {})) for one in (algorithm, again)]
        assert own[0].keys() == own[1].keys()
        assert (algorithm.predict(data, own[0]) == again.predict(data, own[1])).all()


def test_nothing_leaves_a_client_that_trains_alone(world, clients):
    algorithm = make(world, "local-only")
    states, sent = play(algorithm, clients, 2)
    assert all(not message.arrays and not message.scalars for message in sent)
    assert algorithm.releases() == []
    assert all(states.values())


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_the_last_layer_never_leaves_a_client(world, clients, name):
    algorithm = make(world, name)
    first = [algorithm.model[array].copy() for array in algorithm.head]
    states, sent = play(algorithm, clients, 3)
    own = {array.tobytes() for state in states.values() for array in state.values()}
    for message in sent:
        assert set(message.arrays) == set(algorithm.body)
        assert not own & {array.tobytes() for array in message.arrays.values()}
    for array, value in zip(algorithm.head, first):
        assert (algorithm.model[array] == value).all()  # the server has none but that with which all begin
    assert len({state[algorithm.head[0]].tobytes() for state in states.values()}) == len(clients)


def test_fedper_trains_both_parts_together_and_averages_the_body(world, clients):
    algorithm, plain = make(world, "fedper"), make(world, "fedavg")
    plain.model = dict(algorithm.model)
    two = {0: clients[0], 1: clients[1]}
    states, _ = play(algorithm, two, 1)
    trained = {}
    for task in plain.plan(1, [0, 1], {}):
        trained[task.client] = plain.local_update(task, two[task.client], {})[0].arrays
    for array in algorithm.body:
        np.testing.assert_allclose(algorithm.model[array], (trained[0][array] + trained[1][array]) / 2, atol=1e-6)
    for client, array in ((client, array) for client in two for array in algorithm.head):
        assert (states[client][array] == trained[client][array]).all()


def test_fedrep_fits_the_last_layer_to_the_shared_body_and_then_the_body_to_it(world, clients):
    algorithm = make(world, "fedrep", head_epochs=5)
    start = dict(algorithm.model)
    [task] = algorithm.plan(1, [0], {})
    result, head = algorithm.local_update(task, clients[0], {})
    local = algorithm.local
    fitted = algorithm.trained(start, clients[0], local.model_copy(update={"epochs": 5}), ("any",), only=algorithm.head)
    assert all((fitted[array] == start[array]).all() for array in algorithm.body)
    for array in algorithm.head:
        np.testing.assert_allclose(fitted[array], head[array], atol=1e-6)
    expected = algorithm.trained(fitted, clients[0], local, ("any",), only=algorithm.body)
    for array in algorithm.body:
        np.testing.assert_allclose(expected[array], result.arrays[array], atol=1e-6)


def test_ditto_without_a_pull_trains_alone_and_with_a_strong_one_stays_at_the_servers_model(world, clients):
    ditto, alone, fedavg = make(world, "ditto", pull=0.0), make(world, "local-only"), make(world, "fedavg")
    ditto.model = dict(alone.model)
    fedavg.model = dict(alone.model)
    states, _ = play(ditto, clients, 4)
    own, _ = play(alone, clients, 4)
    play(fedavg, clients, 4)
    for array in alone.model:
        np.testing.assert_allclose(states[0][array], own[0][array], atol=1e-6)
        np.testing.assert_allclose(ditto.model[array], fedavg.model[array], atol=1e-6)  # which it never disturbs
    near = make(world, "ditto", pull=9.0)
    before, _ = play(near, clients, 4)
    server = near.plan(5, [0], {})[0].arrays
    distance = [sum(((states[array] - server[array]) ** 2).sum() for array in server) for states in (before[0], own[0])]
    assert distance[0] < 0.1 * distance[1]


def test_ifca_sends_all_models_and_gets_the_best_one_back(world, clients):
    algorithm = make(world, "ifca", num_clusters=3)
    [task] = algorithm.plan(1, [0], {})
    data = clients[0]
    losses = []
    for index in range(3):
        answers = algorithm.predict(data, below(task.arrays, f"cluster/{index}"))
        losses.append(-answers[np.arange(len(data)), data.labels].mean())
    result, state = algorithm.local_update(task, data, {})
    assert {array.split("/")[1] for array in result.arrays} == {str(np.argmin(losses))}
    assert state == {}
    before = [dict(model) for model in algorithm.models]
    algorithm.aggregate(1, [result], [])
    moved = [any((model[array] != old[array]).any() for array in old) for model, old in zip(algorithm.models, before)]
    assert moved == [index == np.argmin(losses) for index in range(3)]
    both = {**result.arrays, **{f"cluster/9/{array}": value for array, value in before[0].items()}}
    with pytest.raises(ValueError, match="not one cluster"):
        algorithm.check_result(task, Message(0, 1, both))


def test_fedamp_sends_a_client_the_mean_of_models_like_its_own(world):
    algorithm = make(world, "fedamp", network={"kind": "linear"}, own_weight=0.4, sharpness=50.0)
    names = list(algorithm.model)
    models = {n: {array: np.zeros_like(algorithm.model[array]) for array in names} for n in range(3)}
    for number, (first, second) in enumerate([(1.0, 0.0), (1.0, 0.1), (0.0, 1.0)]):
        models[number][names[0]].flat[:2] = first, second
    algorithm.aggregate(1, [Message(number, 1, model) for number, model in models.items()], [])
    tasks = {task.client: task.arrays for task in algorithm.plan(2, [0, 1, 2, 9], {})}
    cosine = 1 / np.sqrt(1.01)
    weight = 0.6 / (1 + np.exp(50.0 * (0 - cosine)))  # of client 1 for client 0
    expected = 0.4 * models[0][names[0]] + weight * models[1][names[0]] + (0.6 - weight) * models[2][names[0]]
    np.testing.assert_allclose(tasks[0][names[0]], expected, atol=1e-6)
    mean = sum(model[names[0]] for model in models.values()) / 3
    np.testing.assert_allclose(tasks[9][names[0]], mean, atol=1e-6)  # of whom no model is known


def test_fedamp_answers_a_client_by_its_own_model_and_takes_no_earlier_one_for_it(world, clients):
    algorithm = make(world, "fedamp")
    states, sent = play(algorithm, clients, 3)
    own = algorithm.personalise(0, clients[0], states[0])
    [last] = [message for message in sent if (message.client, message.server_round) == (0, 3)]
    assert all((own[array] == last.arrays[array]).all() for array in own)
    [early] = [message for message in sent if (message.client, message.server_round) == (0, 1)]
    algorithm.aggregate(4, [early], [])
    assert all((algorithm.models[0][array] == last.arrays[array]).all() for array in own)


def test_a_model_of_ifca_that_diverged_is_nobodys_best(world, clients):
    algorithm = make(world, "ifca", num_clusters=2)
    algorithm.models[0] = {array: np.full_like(value, np.nan) for array, value in algorithm.models[0].items()}
    [task] = algorithm.plan(1, [0], {})
    result, _ = algorithm.local_update(task, clients[0], {})
    assert all(array.startswith("cluster/1/") for array in result.arrays)


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_a_linear_network_has_no_body_to_share(world, clients, name):
    states, sent = play(make(world, name, network={"kind": "linear"}), clients, 2)
    assert all(not message.arrays for message in sent)
    assert all(states.values())


def test_fedavg_tunes_the_final_model_on_the_clients_own_examples(world, clients):
    algorithm = make(world, "fedavg", personal_epochs=3)
    play(algorithm, clients, 2)
    own = algorithm.personalise(0, clients[0], {})
    local = algorithm.local.model_copy(update={"epochs": 3})
    expected = algorithm.trained(algorithm.model, clients[0], local, ("any",))
    for array in own:
        np.testing.assert_allclose(own[array], expected[array], atol=1e-6)
    untuned = make(world, "fedavg").personalise(0, clients[0], {})
    assert untuned.keys() == algorithm.model.keys()
