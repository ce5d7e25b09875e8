"""Says that a gate of DDOME has collapsed when it begins, and once more if it ends."""

from collections.abc import Sequence

import numpy as np

from collegium.core.progress import say
from collegium.federated.algorithms.ddome import Ddome
from collegium.federated.protocol import Algorithm

MOST = 0.9


class CollapseAlarm:
    """Watches what clients want; of an algorithm whose clients are not asked, where the judging examples go."""

    def __init__(self, algorithm: Algorithm):
        self.algorithm = algorithm
        self.expert: int | None = None

    def look(self, server_round: int, utilisation: Sequence[float] | None = None) -> None:
        """After a round.

        Args:
            utilisation: shares of the judging examples by expert; None where the round was not judged.
        """
        if not isinstance(self.algorithm, Ddome) or self.algorithm.warming(server_round):
            return
        expert, what = self.algorithm.collapsed_to(), "clients want"
        if self.algorithm.sends_all:
            if utilisation is None:
                return
            best = int(np.argmax(utilisation))
            expert, what = (best if utilisation[best] >= MOST else None), "examples go to"
        if expert is not None and self.expert is None:
            say(f"round {server_round}: nine of ten {what} expert {expert}; the gate has collapsed")
        if expert is None and self.expert is not None:
            say(f"round {server_round}: {what} different experts again")
        self.expert = expert
