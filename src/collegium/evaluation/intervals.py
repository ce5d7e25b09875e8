"""How sure an accuracy is, for the number of examples that it was measured on."""

from collections.abc import Mapping

import numpy as np

from collegium.core.random_streams import stream
from collegium.evaluation.evaluate import Correct

LEVEL = 0.95
DRAWS = 20_000


def accuracy_intervals(correct: Mapping[str, Correct]) -> dict[str, dict[str, list[float]]]:
    """`told` and `union` → domain, and `mean` → [low, high], within which an accuracy lies with 95 %.

    Jeffreys' interval, the quantiles of Beta(right + ½, wrong + ½), ending at the accuracy itself where that is 0 or 1
    (Brown, Cai, DasGupta 2001); of the macro average the quantiles of the mean of such draws. It is the uncertainty of
    the examples alone, not that of training. Cost: O(domains · draws).
    """
    random = stream(0, "accuracy intervals")
    found: dict[str, dict[str, list[float]]] = {}
    for setting in ("told", "union"):
        draws, shares = {}, {}
        for name, answers in correct.items():
            right, total = int(getattr(answers, setting).sum()), len(answers.union)
            shares[name] = right / total
            draws[name] = random.beta(right + 0.5, total - right + 0.5, DRAWS)
        draws["mean"] = np.mean(list(draws.values()), axis=0)
        shares["mean"] = np.mean(list(shares.values()))
        found[setting] = {name: _around(shares[name], values) for name, values in draws.items()}
    return found


def _around(share: float, draws: np.ndarray) -> list[float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [round(float(min(low, share)), 5), round(float(max(high, share)), 5)]
