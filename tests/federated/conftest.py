"""Fixtures of the federated tests."""

import pytest

from collegium.federated.algorithms.one_model import World
from collegium.federated.client_state import ClientStates
from collegium.federated.in_process import InProcess
from federated_world import CLASSES, DIM, make_client


@pytest.fixture
def world():
    return World(features=DIM, shape=(DIM,), classes=CLASSES, num_clients=10, random_seed=0)


@pytest.fixture
def clients():
    """Ten clients with two classes each."""
    return {number: make_client(number, classes=(number % 4, (number + 1) % 4)) for number in range(10)}


@pytest.fixture
def make_engine(clients, tmp_path):
    def make(algorithm, folder="clients", data_of=None):
        states = ClientStates(tmp_path / folder)
        return InProcess(algorithm, data_of or clients.__getitem__, lambda: list(clients), states)

    return make
