"""Every algorithm by its name, and its settings: server and clients make the same object from the same settings."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from collegium.federated.algorithms.average_ensemble import AverageEnsemble, AverageEnsembleSettings
from collegium.federated.algorithms.ddome import Ddome, DdomeSettings
from collegium.federated.algorithms.ditto import Ditto, DittoSettings
from collegium.federated.algorithms.fedadg import FedAdg, FedAdgSettings
from collegium.federated.algorithms.fedamp import FedAmp, FedAmpSettings
from collegium.federated.algorithms.fedavg import FedAvg, FedAvgSettings
from collegium.federated.algorithms.fedmix import FedMixSettings, fedmix
from collegium.federated.algorithms.fedper import FedPer, FedPerSettings
from collegium.federated.algorithms.fedprox import FedProx, FedProxSettings
from collegium.federated.algorithms.fedrep import FedRep, FedRepSettings
from collegium.federated.algorithms.fedsr import FedSr, FedSrSettings
from collegium.federated.algorithms.ifca import Ifca, IfcaSettings
from collegium.federated.algorithms.local_only import LocalOnly, LocalOnlySettings
from collegium.federated.algorithms.one_model import World
from collegium.federated.algorithms.scaffold import Scaffold, ScaffoldSettings
from collegium.federated.protocol import Algorithm

AlgorithmSettings = Annotated[
    FedAvgSettings
    | FedProxSettings
    | ScaffoldSettings
    | DdomeSettings
    | FedMixSettings
    | AverageEnsembleSettings
    | FedSrSettings
    | FedAdgSettings
    | LocalOnlySettings
    | FedPerSettings
    | FedRepSettings
    | DittoSettings
    | IfcaSettings
    | FedAmpSettings,
    Field(discriminator="name"),
]

ALGORITHMS: dict[str, Callable[[World, Any], Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "ddome": Ddome,
    "fedmix": fedmix,
    "average-ensemble": AverageEnsemble,
    "fedsr": FedSr,
    "fedadg": FedAdg,
    "local-only": LocalOnly,
    "fedper": FedPer,
    "fedrep": FedRep,
    "ditto": Ditto,
    "ifca": Ifca,
    "fedamp": FedAmp,
}


PERSONAL_ONLY = ("local-only", "fedper", "fedrep")  # without examples of its own nobody gets an answer
SIMULATED_ONLY = (*PERSONAL_ONLY, "fedamp")  # no model for others comes out, or one that holds every client's own


def make_algorithm(world: World, settings: AlgorithmSettings) -> Algorithm:
    """The algorithm that the settings name."""
    return ALGORITHMS[settings.name](world, settings)
