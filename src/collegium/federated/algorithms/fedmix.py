"""FedMix, a federated mixture of experts: every client trains all experts, in proportion to the gate's responsibility.

Reisser, Louizos, Gavves, Welling 2021, "Federated Mixture of Experts", arXiv:2107.06724. It is the round of DDOME with
all K experts sent (M = K) and without anchors. The paper's gate reads the input of the experts; ours reads the same
features as DDOME's, so that the two differ in the algorithm alone.
"""

from typing import Literal

from pydantic import Field

from collegium.core.settings import Settings
from collegium.federated.algorithms.ddome import Ddome, DdomeSettings
from collegium.federated.algorithms.one_model import World
from collegium.federated.local_training import LocalSettings
from collegium.federated.networks import NetworkSettings


class FedMixSettings(Settings):
    """Settings of FedMix; see those of DDOME."""

    name: Literal["fedmix"] = "fedmix"
    num_experts: int = Field(default=5, ge=2, description="K")
    expert: NetworkSettings = NetworkSettings()
    gate_hidden: int = Field(default=0, ge=0, description="units of the gate's hidden layer; 0 = a linear gate")
    local: LocalSettings = LocalSettings()
    inference: Literal["top-1", "mixture", "client"] = Field(default="mixture", description="as of DDOME")


def fedmix(world: World, settings: FedMixSettings) -> Ddome:
    """The mixture in which everybody trains everything."""
    shared = settings.model_dump(exclude={"name"})
    return Ddome(
        world,
        DdomeSettings(**shared, variant="described", anchors="none", experts_per_client=settings.num_experts),
    )
