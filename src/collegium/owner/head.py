"""The head of task label-head: one row for each class, owned by the owner of the label, for seeds that read no names.

logits = logit_scale · cosine(embedding of the item, row of the class). Owners train their rows apart and never see each
other's, so a common scale must come from elsewhere: embeddings and rows are of length 1, the scale is fixed by the
charter, and every owner's rows compete with the same *anchors*, the seed's embeddings of some pool items. So the
anchors do what other owners' class names do in label matching. On private examples they are wrong answers. On proxies
they alone compete, and are right in the proportions in which the seed sees them: the seed's features are kept on
public items, by a distillation of its similarities (Tung & Mori 2019, arXiv:1907.09682, in the same spirit). An
owner's rows stay out of that loss: proxies are chosen because they look like private examples, and a pool that holds
other pictures of the owner's domain would teach that these are not its own.

Labels of the pool are not used: their rows would belong to nobody and leave with nobody's contribution.

A row starts as the mean of the private embeddings of its class, and is trained together with the expert (Snell et al.
2017, arXiv:1703.05175, classify by class means; Gidaris & Komodakis 2018, arXiv:1804.09458, by cosine).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from collegium.models.tasks import ClassSet
from collegium.owner.charter import POOL_DOMAIN, Charter
from collegium.selection.pool import Pool, is_held_out

ANCHORS = 64  # pool items that every owner's rows compete with
UNIT = 1e-3  # how far from 1 the length of a row may be


def head_classes(charter: Charter, pool: Pool, heads: Mapping[str, Float32[Tensor, "_ dim"]]) -> ClassSet:
    """The rows of some owners, and behind them the anchors as the pool's classes.

    Args:
        heads: owner → rows, in the order of the owner's labels in the charter.
    """
    names = [(owner, label) for owner in heads for label in charter.terms.owners[owner].labels or []]
    hashes = pool.hashes
    trained = (row for row, value in enumerate(hashes) if not is_held_out(value, charter.terms.held_out_one_in))
    anchors = [row for row, _ in zip(trained, range(ANCHORS), strict=False)]  # lowest hashes: as good as drawn
    rows = [*heads.values(), torch.from_numpy(np.array(pool.embeddings[anchors], np.float32))]
    every = (*names, *((POOL_DOMAIN, hashes[row]) for row in anchors))
    return ClassSet(every, torch.cat(rows), charter.terms.training.logit_scale)


def starting_rows(
    embeddings: Float32[np.ndarray, "items dim"], labels: Sequence[str], names: Sequence[str]
) -> Float32[Tensor, "classes dim"]:
    """The direction of the mean embedding of each class; `load_private` has made sure that each has an example."""
    of_class = np.array(labels)
    means = np.stack([embeddings[of_class == name].mean(axis=0, dtype=np.float64) for name in names])
    return torch.from_numpy(means / np.linalg.norm(means, axis=1, keepdims=True)).float()
