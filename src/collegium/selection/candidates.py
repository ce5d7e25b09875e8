"""What may be picked at all, and how it is said when that is too little: common to the strategies beside the DPP.

Candidates stand in the order of their content hashes, so that whatever is summed or drawn over them does not
depend on the order of the pool.
"""

import numpy as np
from jaxtyping import Float64, Int

from collegium.core.shapes import Embeddings, Scores
from collegium.selection.inputs import check_lengths, check_log_relevance, check_size, checked_chunks, hash_order

Rows = Int[np.ndarray, " _"]  # some of the pool's rows
Weights = Float64[np.ndarray, " _"]  # one for each of some rows


def candidates(
    features: Embeddings, log_relevance: Scores, size: int, content_hashes: list[str] | None
) -> tuple[Rows, Weights]:
    """Rows with g > 0 by their content hash (by row without hashes), and g of each as a share of the largest g.

    Reads the features once, to check them. A share below the smallest float64 is 0: such items come last.

    Raises:
        InputError: NaN, infinite or zero-norm features, a log relevance that is NaN or above 0 (the row is
            named), lengths that differ, or a size below 1.
    """
    check_size(size)
    check_lengths(len(features), log_relevance, content_hashes)
    check_log_relevance(log_relevance)
    for _ in checked_chunks(features, "pool"):
        pass
    log_g = np.asarray(log_relevance, np.float64)
    rows = np.argsort(hash_order(len(features), content_hashes))
    rows = rows[np.isfinite(log_g[rows])]
    return rows, np.exp(log_g[rows] - log_g[rows].max(initial=-np.inf)) if len(rows) else np.empty(0)


def shortfall(found: int, size: int, num_items: int) -> str | None:
    """None, or that the pool has no more items with relevance above 0."""
    if found == size:
        return None
    return f"{found} of {size} items found: of the pool's {num_items}, {found} have relevance above 0"
