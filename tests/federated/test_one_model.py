"""FedAvg, FedProx and Scaffold against what can be computed by hand or is known of a convex problem."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from collegium.federated.algorithms.fedavg import FedAvg, FedAvgSettings
from collegium.federated.algorithms.fedprox import FedProx, FedProxSettings
from collegium.federated.algorithms.one_model import World
from collegium.federated.algorithms.scaffold import Scaffold, ScaffoldSettings
from collegium.federated.networks import Networks, NetworkSettings, build_network, parameters_of
from collegium.federated.protocol import ClientData, Message, below
from federated_world import CLASSES, DIM, make_client

LINEAR = {"network": {"kind": "linear"}, "local": {"learning_rate": 0.1, "batch_size": 10_000}}


def one_step(data, model, learning_rate=0.1):
    """A full-batch step of softmax regression, in numpy."""
    logits = data.inputs @ model["weight"].T + model["bias"]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    errors = (shares - np.eye(CLASSES)[data.labels]) / len(data)
    return {
        "weight": model["weight"] - learning_rate * errors.T @ data.inputs,
        "bias": model["bias"] - learning_rate * errors.sum(axis=0),
    }


def with_noise(data):
    """A fifth of the labels made wrong: classes that a plane parts have no finite optimum."""
    labels = data.labels.copy()
    labels[::5] = (labels[::5] + 1) % CLASSES
    return ClientData(data.features, data.inputs, labels)


def play(algorithm, clients, rounds):
    """All clients in every round, in one process."""
    states = {number: {} for number in clients}
    for server_round in range(1, rounds + 1):
        results = []
        for task in algorithm.plan(server_round, list(clients), {}):
            result, state = algorithm.local_update(task, clients[task.client], states[task.client])
            states[task.client] = state
            results.append(result)
        algorithm.aggregate(server_round, results, [])
    return algorithm


def test_fedavg_averages_what_each_client_trained(world):
    clients = {1: make_client(1, (0, 1)), 2: make_client(2, (2, 3), examples=80)}
    algorithm = FedAvg(world, FedAvgSettings.model_validate(LINEAR))
    start = dict(algorithm.model)
    play(algorithm, clients, rounds=1)
    expected = [one_step(data, start) for data in clients.values()]
    for name in start:
        mean = (expected[0][name] + expected[1][name]) / 2  # whatever the number of examples
        np.testing.assert_allclose(algorithm.model[name], mean, atol=1e-6)


@pytest.mark.parametrize("make", [FedAvg, FedProx, Scaffold])
def test_the_order_of_results_changes_nothing_and_stale_ones_are_left_out(world, clients, make):
    settings = {FedAvg: FedAvgSettings, FedProx: FedProxSettings, Scaffold: ScaffoldSettings}[make]
    found = []
    for turn in (1, -1):
        algorithm = make(world, settings.model_validate(LINEAR))
        tasks = algorithm.plan(3, list(clients), {})
        results = [algorithm.local_update(task, clients[task.client], {})[0] for task in tasks]
        stale = Message(77, 2, {name: array + 1 for name, array in results[0].arrays.items()})
        algorithm.aggregate(3, [*results, stale][::turn], [])
        found.append(algorithm.state_dict()["arrays"])
    assert all((found[0][name] == found[1][name]).all() for name in found[0])


def test_a_round_without_results_changes_nothing(world):
    algorithm = FedAvg(world, FedAvgSettings.model_validate(LINEAR))
    before = dict(algorithm.model)
    algorithm.aggregate(1, [], [1, 2])
    assert all((algorithm.model[name] == before[name]).all() for name in before)


def test_fedprox_stays_nearer_to_where_it_started(world):
    data = make_client(1)
    local = {"learning_rate": 0.1, "batch_size": 8, "epochs": 5}

    def moved(proximal):
        settings = FedProxSettings.model_validate({**LINEAR, "local": local, "proximal": proximal})
        algorithm = FedProx(world, settings)
        [task] = algorithm.plan(1, [1], {})
        result, _ = algorithm.local_update(task, data, {})
        return sum(float(((result.arrays[name] - task.arrays[name]) ** 2).sum()) for name in task.arrays)

    assert moved(10.0) < moved(1.0) < moved(0.0)
    fedavg = FedAvg(world, FedAvgSettings.model_validate({**LINEAR, "local": local}))
    [task] = fedavg.plan(1, [1], {})
    plain, _ = fedavg.local_update(task, data, {})
    distance = sum(float(((plain.arrays[name] - task.arrays[name]) ** 2).sum()) for name in task.arrays)
    assert moved(0.0) == pytest.approx(distance)


def test_the_control_variates_of_scaffold_are_those_of_algorithm_1(world):
    clients = {1: make_client(1, (0, 1)), 2: make_client(2, (2, 3))}
    algorithm = Scaffold(world, ScaffoldSettings.model_validate({**LINEAR}))
    start = dict(algorithm.model)
    tasks = algorithm.plan(1, [1, 2], {})
    results, states = zip(*(algorithm.local_update(task, clients[task.client], {}) for task in tasks))
    algorithm.aggregate(1, results, [])
    # one full-batch step from c = c_i = 0: the new c_i is the gradient at the start
    gradients = [
        {name: (start[name] - one_step(data, start)[name]) / 0.1 for name in start} for data in clients.values()
    ]
    for name in start:
        for state, gradient in zip(states, gradients):
            np.testing.assert_allclose(state[name], gradient[name], atol=1e-5)
        share = 2 / 10 * (gradients[0][name] + gradients[1][name]) / 2
        np.testing.assert_allclose(algorithm.control[name], share, atol=1e-5)
    # the second step is corrected by c - c_i
    [task, _] = algorithm.plan(2, [1, 2], {})
    model, control = below(task.arrays, "model"), below(task.arrays, "control")
    result, _ = algorithm.local_update(task, clients[1], states[0])
    for name in start:
        expected = one_step(clients[1], model)[name] - 0.1 * (control[name] - states[0][name])
        np.testing.assert_allclose(below(result.arrays, "model")[name], expected, atol=1e-5)


def test_scaffold_finds_the_optimum_of_all_that_fedavg_misses(world):
    """Softmax regression is convex: with several local steps on different classes FedAvg ends elsewhere."""
    clients = {number: with_noise(make_client(number, (number % 4, (number + 1) % 4))) for number in range(4)}
    local = {"learning_rate": 0.1, "batch_size": 10_000, "epochs": 10, "weight_decay": 0.0}
    fedavg = play(FedAvg(world, FedAvgSettings.model_validate({**LINEAR, "local": local})), clients, 300)
    scaffold = Scaffold(replace(world, num_clients=4), ScaffoldSettings.model_validate({**LINEAR, "local": local}))
    play(scaffold, clients, 300)

    def gradient(model):
        """Length of the gradient of the mean of all clients' losses: 0 at the optimum alone."""
        steps = [one_step(data, model, 1.0) for data in clients.values()]
        return sum(float((np.mean([step[name] - model[name] for step in steps], axis=0) ** 2).sum()) for name in model)

    assert gradient(scaffold.model) < 0.02 * gradient(fedavg.model)


def test_scaffold_takes_plain_steps_only():
    with pytest.raises(ValidationError, match="plain steps"):
        ScaffoldSettings.model_validate({"local": {"momentum": 0.9}})


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_fedavg_learns(world, clients, kind):
    settings = {"network": {"kind": kind}, "local": {"learning_rate": 0.1, "epochs": 3}}
    algorithm = play(FedAvg(world, FedAvgSettings.model_validate(settings)), clients, 30)
    unseen = make_client(123)
    assert (algorithm.predict(unseen).argmax(axis=1) == unseen.labels).mean() > 0.85


def test_a_cnn_of_pictures_has_the_shapes_that_travel():
    settings = NetworkSettings(kind="cnn", hidden=4)
    cnns = Networks(lambda: build_network(settings, (3, 16, 16), 5))
    arrays = cnns.started(0)
    module = cnns.filled(arrays)
    assert module(torch.zeros(2, 3, 16, 16)).shape == (2, 5)
    assert all((parameters_of(module)[name] == arrays[name]).all() for name in arrays)
    with pytest.raises(ValueError, match="shape"):
        Networks(lambda: build_network(settings, (3, 8, 8), 5)).filled(arrays)
    with pytest.raises(ValueError, match="are not those of the network"):
        cnns.filled({"weight": arrays["head.weight"]})
    start = World(DIM, (3, 16, 16), 5, 1, 0, initial=arrays).start(cnns, "any")
    assert all((start[name] == arrays[name]).all() for name in arrays)


def test_a_network_starts_the_same_for_a_seed_and_is_filled_without_drawing():
    networks = Networks(lambda: build_network(NetworkSettings(), (DIM,), 3))
    first, again, other = networks.started(1), networks.started(1), networks.started(2)
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)
    before = torch.get_rng_state()
    module = networks.filled(first)
    assert networks.filled(first, place=1) is not module
    assert networks.filled(other) is module
    assert torch.equal(module.get_parameter("0.weight"), torch.from_numpy(other["0.weight"]))
    with torch.no_grad():
        module.get_parameter("0.weight").zero_()
    assert other["0.weight"].any()  # the module has copies
    assert torch.equal(torch.get_rng_state(), before)


def test_a_head_on_the_gates_features_runs_where_the_inputs_are_pictures(clients):
    pictures = np.zeros((40, 3, 8, 8), np.float32)  # that say nothing
    with_pictures = {number: ClientData(data.features, pictures, data.labels) for number, data in clients.items()}
    world = World(DIM, (3, 8, 8), CLASSES, 10, 0)
    found = {}
    for reads in ("features", "inputs"):
        values = {"network": {"kind": "linear", "reads": reads}, "local": {"learning_rate": 0.1, "epochs": 3}}
        algorithm = play(FedAvg(world, FedAvgSettings.model_validate(values)), with_pictures, 30)
        unseen = make_client(123)
        answers = algorithm.predict(ClientData(unseen.features, pictures, unseen.labels))
        found[reads] = (answers.argmax(axis=1) == unseen.labels).mean()
    assert found["features"] > 0.85
    assert found["inputs"] < 0.5
    with pytest.raises(ValidationError, match="cnn reads pictures"):
        NetworkSettings(kind="cnn", reads="features")
