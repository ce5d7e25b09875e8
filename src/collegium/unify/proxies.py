"""The union of all owners' proxies, as the coordinator sees it: who chose what, what it teaches, what is held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32

from collegium.data.items import Item
from collegium.models.exercises import Exercises
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import Classes
from collegium.owner.charter import Charter
from collegium.owner.exercises import proxy_exercises
from collegium.owner.validate import Contribution
from collegium.selection.pool import Pool, is_held_out


@dataclass(frozen=True)
class ProxySet:
    """Some proxies.

    Attributes:
        exercises: what each proxy teaches.
        owners: 1 where an owner chose the proxy (several may have); [items, owners].
    """

    exercises: Exercises
    owners: Float32[np.ndarray, "items owners"]

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def items(self) -> list[Item]:
        return self.exercises.items

    def of_owner(self, index: int) -> "ProxySet":
        rows = np.flatnonzero(self.owners[:, index])
        return ProxySet(self.exercises.take(rows.tolist()), self.owners[rows])


def proxy_sets(
    contributions: Sequence[Contribution], charter: Charter, seed: SeedModel, pool: Pool, classes: Classes
) -> tuple[ProxySet, ProxySet]:
    """(training proxies, held-out proxies) of all owners together, in the order of the pool."""
    chosen = sorted({row for contribution in contributions for row in contribution.proxy_rows})
    hashes = pool.hashes
    held_out = [is_held_out(hashes[row], charter.terms.held_out_one_in) for row in chosen]

    def subset(wanted: bool) -> ProxySet:
        rows = [row for row, out in zip(chosen, held_out, strict=True) if out == wanted]
        owners = np.zeros((len(rows), len(contributions)), dtype=np.float32)
        for index, contribution in enumerate(contributions):
            owners[:, index] = np.isin(rows, contribution.proxy_rows)
        return ProxySet(proxy_exercises(charter, seed, pool, rows, classes), owners)

    return subset(False), subset(True)


def proxy_accuracy(model: Any, proxies: ProxySet) -> float | None:
    """Share of right answers: the pool's, or the seed's. None where there is no proxy to judge by."""
    if not len(proxies):
        return None
    given, right = proxies.exercises.answers(model)
    return float((given == right).mean())
