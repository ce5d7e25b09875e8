"""How far one private example can move what is released.

One adjacency throughout: *replace-one* (two data sets of the same size that differ in one example). Pure arithmetic.
"""

import math
from collections.abc import Sequence


def routing_sensitivity(norm_bounds: Sequence[float], num_proxies: int) -> float:
    """L2 sensitivity of an owner's routing vectors, concatenated over layers (METHODS §1).

    The vector of a layer is the mean of z over N private examples and m proxies, so replacing one example moves it
    by at most 2B/(N+m) ≤ 2B/m; over layers the squares add up. It holds for an encoder that does not depend on
    the private data (the seed's pass), given the proxies.

    Args:
        norm_bounds: B of every layer, an upper bound of ‖z‖.
        num_proxies: proxies that are really in the mean; 0 = none, then nothing hides behind N ≥ 1.

    Returns:
        The bound; with 0 proxies 2B (N ≥ 1 is all that may be assumed, since N is not released).
    """
    return 2.0 * math.sqrt(sum(bound * bound for bound in norm_bounds)) / max(num_proxies, 1)
