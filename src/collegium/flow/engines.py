"""Which engine carries a simulated federation's messages: the same rounds, with the same result to the last bit."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path

import torch

from collegium.core.errors import InputError
from collegium.federated.client_side import ClientSide
from collegium.federated.client_state import ClientStates
from collegium.federated.in_process import InProcess
from collegium.federated.make_algorithm import make_algorithm
from collegium.federated.recipe import FederatedRecipe
from collegium.federated.rounds import Engine
from collegium.flow.federation import FEATURES, Federation, open_federation, write_federation

STATES, SHARED, FEATURES_FOLDER = "clients", "shared", "features"


def in_process(recipe: FederatedRecipe, folder: Path, federation: Federation, serve: Callable[[Engine], None]) -> None:
    """Clients in turn, in this process."""
    algorithm = make_algorithm(federation.world(recipe.random_seed), recipe.algorithm)
    serve(InProcess(algorithm, federation.of, lambda: federation.training, ClientStates(folder / STATES)))


def simulation(recipe: FederatedRecipe, folder: Path, federation: Federation, serve: Callable[[Engine], None]) -> None:
    """Clients in worker processes of Flower's simulation, one thread each.

    Raises:
        InputError: Flower or Ray is not installed.
    """
    try:
        from collegium.federated.flower.grid_engine import Terms
        from collegium.federated.flower.simulation import simulate
    except ImportError:
        raise InputError(
            "The simulation needs Flower.", do="pip install 'collegium[federated]', or --engine in-process"
        ) from None
    write_federation(federation, folder / FEATURES_FOLDER / FEATURES, folder / SHARED)
    member_of = partial(_member, recipe.model_dump_json(), str(folder.absolute()))
    terms = Terms(len(federation.rows), "")
    simulate(serve, member_of, terms, len(federation.training), recipe.rounds.deadline)


ENGINES: dict[str, Callable[[FederatedRecipe, Path, Federation, Callable[[Engine], None]], None]] = {
    "in-process": in_process,
    "simulation": simulation,
}


def _member(recipe: str, folder: str, node: Mapping[str, object], _: str):
    """The client of a virtual node, in a worker: arguments are small, since they come with every message."""
    from collegium.federated.flower.client_app import Member

    federation, side = _client_side(recipe, folder)
    client = federation.training[int(str(node["partition-id"]))]
    inputs = federation.data.inputs
    return Member(client, federation.data.features.shape[1], inputs.shape[1:], "", side.answer)


@lru_cache(maxsize=1)
def _client_side(recipe: str, folder: str) -> tuple[Federation, ClientSide]:
    """Loaded once in a worker."""
    torch.set_num_threads(1)
    settings = FederatedRecipe.model_validate_json(recipe)
    federation = open_federation(Path(folder) / SHARED)
    algorithm = make_algorithm(federation.world(settings.random_seed), settings.algorithm)
    return federation, ClientSide(algorithm, federation.of, ClientStates(Path(folder) / STATES))
