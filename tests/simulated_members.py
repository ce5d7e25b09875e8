"""Clients of a simulation in worker processes: made-up data, and one that kills its process."""

import os
import signal
from functools import lru_cache
from pathlib import Path

import torch

from collegium.federated.algorithms.fedavg import FedAvg, FedAvgSettings
from collegium.federated.algorithms.one_model import World
from collegium.federated.client_side import ClientSide
from collegium.federated.client_state import ClientStates
from collegium.federated.flower.client_app import Member
from federated_world import CLASSES, DIM, make_client

NUM_CLIENTS = 4
WORLD = World(features=DIM, shape=(DIM,), classes=CLASSES, num_clients=NUM_CLIENTS, random_seed=0)


def make_algorithm():
    return FedAvg(WORLD, FedAvgSettings.model_validate({"network": {"kind": "linear"}}))


def member(folder, deadly_round, node, experiment):
    """The client of a node; client 1 ends its process in a round (0 = never), once and for all."""
    client = int(node["partition-id"])
    side = _side(folder)

    def answer(kind, message):
        if client == 1 and message.server_round == deadly_round:
            os.kill(os.getpid(), signal.SIGKILL)
        return side.answer(kind, message)

    return Member(client, DIM, (DIM,), "", answer)


@lru_cache(maxsize=1)
def _side(folder):
    torch.set_num_threads(1)
    return ClientSide(make_algorithm(), make_client, ClientStates(Path(folder)))
