"""FedMix, a federated mixture of experts: every client trains all experts, in proportion to the gate's responsibility.

Reisser, Louizos, Gavves, Welling 2021, "Federated Mixture of Experts", arXiv:2107.06724. It is the round of DDOME with
all K experts sent (M = K) and without anchors. The paper's gate reads the input of the experts; ours reads the same
features as DDOME's, so that the two differ in the algorithm alone.
"""

from collegium.federated.algorithms.ddome import Ddome, DdomeSettings
from collegium.federated.algorithms.one_model import World


def fedmix(world: World, settings: DdomeSettings) -> Ddome:
    """The mixture in which everybody trains everything.

    Args:
        settings: variant, anchors and the number of experts a client gets are replaced.
    """
    changes = {"variant": "described", "anchors": "none", "experts_per_client": settings.num_experts}
    return Ddome(world, settings.model_copy(update=changes))
