"""FedMix, the average ensemble and FedSR: what makes each of them what it is."""

import numpy as np
import pytest
import torch

from collegium.federated.algorithms.average_ensemble import AverageEnsemble, AverageEnsembleSettings
from collegium.federated.algorithms.fedadg import FedAdg, FedAdgSettings
from collegium.federated.algorithms.fedmix import FedMixSettings, fedmix
from collegium.federated.algorithms.fedsr import FedSr, FedSrSettings
from collegium.federated.local_training import as_batch
from federated_world import make_client

LOCAL = {"learning_rate": 0.1, "epochs": 2}


def play(algorithm, clients, rounds):
    for server_round in range(1, rounds + 1):
        questions = algorithm.ask(server_round, list(clients))
        answers = {one.client: algorithm.answer(one, clients[one.client]) for one in questions}
        tasks = algorithm.plan(server_round, list(clients), answers)
        algorithm.aggregate(server_round, [algorithm.local_update(t, clients[t.client], {})[0] for t in tasks], [])
    return algorithm


def accuracy(algorithm):
    unseen = make_client(123)
    return (algorithm.predict(unseen).argmax(axis=1) == unseen.labels).mean()


def test_in_fedmix_everybody_trains_every_expert_and_nobody_is_anchor(world, clients):
    settings = FedMixSettings.model_validate({"num_experts": 3, "expert": {"kind": "linear"}, "local": LOCAL})
    algorithm = play(fedmix(world, settings), clients, 20)
    assert algorithm.versions == [20, 20, 20]
    assert algorithm.anchors == [None, None, None]
    assert algorithm.preferred() == []
    assert accuracy(algorithm) > 0.7


def test_the_members_of_an_ensemble_are_trained_by_their_own_clients_and_averaged(world, clients):
    values = {"num_experts": 3, "network": {"kind": "linear"}, "local": LOCAL}
    algorithm = AverageEnsemble(world, AverageEnsembleSettings.model_validate(values))
    before = [dict(member.model) for member in algorithm.members]
    groups = {client: algorithm.members.index(algorithm._of(client)) for client in clients}
    assert len(set(groups.values())) == 3
    alone = [client for client, group in groups.items() if group == 0]
    play(algorithm, {client: clients[client] for client in alone}, 1)
    moved = [any((m.model[n] != start[n]).any() for n in start) for m, start in zip(algorithm.members, before)]
    assert moved == [True, False, False]
    data = clients[0]
    mean = np.mean([np.exp(member.predict(data)) for member in algorithm.members], axis=0)
    np.testing.assert_allclose(np.exp(algorithm.predict(data)), mean, atol=1e-6)
    assert accuracy(play(algorithm, clients, 30)) > 0.7
    again = AverageEnsemble(world, AverageEnsembleSettings.model_validate(values))
    again.load_state_dict(algorithm.state_dict())
    assert (again.predict(data) == algorithm.predict(data)).all()


def test_fedsr_learns_and_its_penalties_are_those_of_torch(world, clients):
    settings = FedSrSettings.model_validate({"network": {"hidden": 8}, "local": LOCAL})
    algorithm = play(FedSr(world, settings), clients, 30)
    assert accuracy(algorithm) > 0.7
    module = algorithm.networks.filled(algorithm.model)
    batch = as_batch(clients[0])
    with torch.no_grad():
        mean, scale = module.encode(batch.inputs)
        torch.manual_seed(1)
        sample = mean + scale * torch.randn_like(scale)
        own = torch.distributions.Normal(mean, scale)
        prior = torch.distributions.Normal(
            module.class_mean[batch.labels], torch.nn.functional.softplus(module.class_scale[batch.labels]) + 1e-3
        )
        divergence = torch.distributions.kl_divergence(own, prior).sum(dim=1).mean()
        task = torch.nn.functional.cross_entropy(module.head(sample), batch.labels)
        expected = task + 0.01 * sample.pow(2).sum(dim=1).mean() + 0.0005 * divergence
        torch.manual_seed(1)
        assert float(algorithm.loss(module, {})(batch)) == pytest.approx(float(expected), rel=1e-5)
    assert (algorithm.predict(clients[0]) == algorithm.predict(clients[0])).all()  # nothing is drawn to answer


def test_a_length_penalty_shortens_the_representation(world, clients):
    lengths = []
    for weight in (0.0, 1.0):
        values = {"network": {"hidden": 8}, "local": LOCAL, "length_weight": weight}
        algorithm = play(FedSr(world, FedSrSettings.model_validate(values)), clients, 5)
        module = algorithm.networks.filled(algorithm.model)
        with torch.no_grad():
            lengths.append(float(module.encode(as_batch(clients[0]).inputs)[0].norm()))
    assert lengths[1] < 0.5 * lengths[0]


def test_fedadg_learns_and_every_part_follows_its_own_loss_alone(world, clients):
    settings = FedAdgSettings.model_validate({"network": {"hidden": 8}, "local": LOCAL})
    algorithm = play(FedAdg(world, settings), clients, 30)
    assert accuracy(algorithm) > 0.7
    module = algorithm.networks.filled(algorithm.model)
    batch = as_batch(clients[0])
    torch.manual_seed(1)
    algorithm.loss(module, {})(batch).backward()
    found = {name: value.grad.clone() for name, value in module.named_parameters()}
    module.zero_grad()
    torch.manual_seed(1)
    classes = torch.nn.functional.one_hot(batch.labels, 4).float()
    features = module.body(batch.inputs)
    generated = module.generator(torch.cat([torch.rand(len(features), 10), classes], dim=1))
    of_generated, of_features = (module.discriminator(torch.cat([v, classes], dim=1)) for v in (generated, features))
    losses = {
        "body": 0.5 * (1 - of_features).pow(2).mean()
        + 0.5 * torch.nn.functional.cross_entropy(module.head(features), batch.labels),
        "discriminator": -(of_generated.pow(2) + (1 - of_features).pow(2)).mean(),
        "generator": (1 - of_generated).pow(2).mean(),
    }
    for part, loss in losses.items():
        names = [name for name, _ in module.named_parameters() if name.startswith(part)]
        values = [module.get_parameter(name) for name in names]
        for name, expected in zip(names, torch.autograd.grad(loss, values, retain_graph=True)):
            torch.testing.assert_close(found[name], expected)
