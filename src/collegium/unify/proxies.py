"""The union of all owners' proxies, as the coordinator sees it: who chose what, what it teaches, what is held out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int

from collegium.data.items import Item
from collegium.models.encoder import Encoder, embed_texts
from collegium.models.proxy_targets import Targets
from collegium.models.tasks import ClassSet
from collegium.owner.charter import Charter
from collegium.owner.pool_targets import pool_targets
from collegium.owner.validate import Contribution
from collegium.selection.pool import Pool, is_held_out


@dataclass(frozen=True)
class ProxySet:
    """Some proxies.

    Attributes:
        owners: 1 where an owner chose the proxy (several may have); [items, owners].
        targets: what each proxy teaches.
    """

    texts: list[Item]
    owners: Float32[np.ndarray, "items owners"]
    targets: Targets

    def of_owner(self, index: int) -> "ProxySet":
        rows = np.flatnonzero(self.owners[:, index])
        return ProxySet(
            [self.texts[row] for row in rows],
            self.owners[rows],
            Targets(self.targets.probabilities[rows], self.targets.allowed[rows]),
        )


def proxy_sets(
    contributions: Sequence[Contribution], charter: Charter, pool: Pool, classes: ClassSet
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
        return ProxySet(pool.texts(rows), owners, pool_targets(charter, pool, rows, classes))

    return subset(False), subset(True)


def proxy_accuracy(encoder: Encoder, proxies: ProxySet, classes: ClassSet) -> float | None:
    """Share of proxies whose best allowed class is the target's best: the pool's label, or the seed's answer.

    None where there is no proxy to judge by.
    """
    if not proxies.texts:
        return None
    return float((proxy_answers(encoder, proxies, classes) == true_answers(proxies)).mean())


def proxy_answers(encoder: Encoder, proxies: ProxySet, classes: ClassSet) -> Int[np.ndarray, " items"]:
    """The best allowed class of every proxy."""
    scores = (torch.from_numpy(embed_texts(encoder, proxies.texts)) @ classes.embeddings.T).numpy()
    return np.where(proxies.targets.allowed > 0, scores, -np.inf).argmax(axis=1)


def true_answers(proxies: ProxySet) -> Int[np.ndarray, " items"]:
    """The class that each proxy should get: the pool's label, or the seed's answer."""
    return proxies.targets.probabilities.argmax(axis=1)
