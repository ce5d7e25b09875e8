"""Federations whose clients are judged by examples of their own: who learns from what, and what is found."""

import json

import numpy as np
import pytest

from collegium.core.errors import RecipeError
from collegium.core.load_recipe import parse_settings
from collegium.federated.recipe import FederatedRecipe
from collegium.flow.federate import federate
from collegium.flow.gather_clients import gather_clients
from tiny import write_all_domains

ALGORITHMS = ["fedavg", "local-only", "fedper", "fedrep", "ditto", "ifca", "fedamp", "ddome", "scaffold"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_all_domains(tmp_path_factory.mktemp("data") / "texts.jsonl", 60)


@pytest.fixture
def make(data, seed_folder):
    def make(protocol="personal", judged="test", **changes):
        values = {
            "data": str(data),
            "common_expert": str(seed_folder),
            "partition": {"kind": "pathological", "num_clients": 12, "classes_per_client": 2},
            "held_out_clients": 0.25,
            "algorithm": {"name": "fedavg"},
            "rounds": {"rounds": 4, "clients_per_round": 4},
            "evaluation": {"every": 2, "averaged": 2, "protocol": protocol, "clients": judged},
        }
        return parse_settings({**values, **changes}, FederatedRecipe)

    return make


def test_what_judges_a_client_is_not_learnt_from(make, tmp_path):
    test, validation = (gather_clients(make(judged=judged), tmp_path) for judged in ("test", "validation"))
    whole = gather_clients(make(protocol="zero-shot"), tmp_path)
    assert test.training == validation.training == whole.training
    for client, rows in enumerate(whole.rows):
        parts = [set(one[client].tolist()) for one in (test.rows, test.asked, validation.asked)]
        assert set.union(*parts) == set(rows.tolist())
        assert sum(map(len, parts)) == len(rows)
        assert len(parts[1]) == len(parts[2]) == round(0.2 * len(rows))
        assert (test.rows[client] == validation.rows[client]).all()
        assert len(test.asked_of(client)) == len(parts[1])


def test_groups_of_clients_call_classes_by_other_names(make, tmp_path):
    plain, shifted = (gather_clients(make(concept_groups=groups), tmp_path) for groups in (1, 3))
    changed = []
    for client, rows in enumerate(plain.rows):
        assert (shifted.rows[client] == rows).all()
        before, after = plain.of(client).labels, shifted.of(client).labels
        names = {(old, new) for old, new in zip(before.tolist(), after.tolist())}
        assert len(names) == len(set(before.tolist())) == len(set(after.tolist()))  # one name a class
        changed.append((before != after).any())
    assert changed == [client % 3 != 0 for client in range(12)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_judged_by_its_clients_own_examples(make, tmp_path, name):
    recipe = make(algorithm={"name": name})
    found = json.loads(federate(recipe, tmp_path).read_bytes())
    assert len(found["by_client"]) == found["clients"]["training"] == 6
    assert 0 <= found["accuracy_of_newcomers"] <= 1
    assert found["averaged_rounds"] == [2, 4]
    clients = gather_clients(recipe, tmp_path)
    sizes = np.array([len(clients.asked_of(client)) for client in clients.training])
    counts = 2 * sizes * found["by_client"]  # each is the mean of two shares of a whole number
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)


def test_a_killed_run_finds_the_same(make, tmp_path, monkeypatch):
    recipe = make(algorithm={"name": "fedper"})
    undisturbed = federate(recipe, tmp_path / "a").read_bytes()
    from collegium.flow import federate as module

    add, left = module.RoundMetrics.add, [3]

    def dying(self, line):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        add(self, line)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.RoundMetrics, "add", dying)
        federate(recipe, tmp_path / "b")
    assert federate(recipe, tmp_path / "b").read_bytes() == undisturbed


def test_a_client_needs_examples_to_learn_from(make, tmp_path):
    partition = {"kind": "iid", "num_clients": 120, "min_examples": 1}
    with pytest.raises(RecipeError, match=r"too few examples to be judged(.|\n)*min_examples"):
        gather_clients(make(partition=partition, evaluation={"protocol": "personal", "own_share": 0.45}), tmp_path)
