"""What items of the pool teach under a charter: their labels where it prompts them, otherwise the seed's answers."""

from collections.abc import Sequence

import numpy as np

from collegium.models.proxy_targets import Targets, proxy_targets
from collegium.models.tasks import ClassSet
from collegium.owner.charter import Charter
from collegium.selection.pool import Pool


def pool_targets(charter: Charter, pool: Pool, rows: Sequence[int], classes: ClassSet) -> Targets:
    """Targets of some rows of the pool."""
    labels = pool.labels_of(rows) if charter.terms.pool_prompt is not None else None
    embeddings = np.asarray(pool.embeddings[list(rows)])
    return proxy_targets(embeddings, labels, classes, charter.pool_domain, charter.terms.training.logit_scale)
