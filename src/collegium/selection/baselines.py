"""What the diverse selection is compared with: relevance alone, and chance.

Both are the greedy MAP of a diagonal kernel, so that their gains mean the same as those of `select_dpp`:
diag(g²) for relevance alone (FlexOlmo, https://arxiv.org/abs/2507.07024, selects so), the identity for
chance.
"""

import numpy as np

from collegium.core.random_streams import stream
from collegium.core.shapes import Scores
from collegium.selection.dpp import Selection
from collegium.selection.inputs import check_lengths, check_log_relevance, check_size, hash_order


def select_similarity(log_relevance: Scores, size: int, content_hashes: list[str] | None) -> Selection:
    """Pick the `size` most relevant items, equal ones by the lowest content hash (the lowest row without
    hashes).

    O(n log n) time.

    Args:
        log_relevance: log g, at most 0; −inf = never pick.
        size: most items to pick, at least 1.

    Raises:
        InputError: a log relevance is NaN or above 0 (the row is named), or lengths or the size are wrong.
    """
    check_size(size)
    check_lengths(len(log_relevance), None, content_hashes)
    check_log_relevance(log_relevance)
    order = np.lexsort((hash_order(len(log_relevance), content_hashes), -log_relevance))
    eligible = int(np.isfinite(log_relevance).sum())
    picks = order[: min(size, eligible)]
    log_gains = 2 * np.asarray(log_relevance, np.float64)[picks]
    return Selection(picks, np.exp(log_gains), float(log_gains.sum()), _shortfall(len(picks), size))


def select_random(num_items: int, size: int, random_seed: int) -> Selection:
    """Pick `size` of `num_items` items by chance, all equally likely, none twice.

    The random stream is "selection"; O(num_items) time. Every gain is 1.

    Raises:
        InputError: the size is below 1.
    """
    check_size(size)
    picks = stream(random_seed, "selection").permutation(num_items)[:size]
    return Selection(picks, np.ones(len(picks)), 0.0, _shortfall(len(picks), size))


def _shortfall(found: int, size: int) -> str | None:
    return None if found == size else f"{found} of {size} items found: the pool has no more that can be picked"
