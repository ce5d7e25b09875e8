"""Mean ± std over seeds, and paired differences with a bootstrap interval.

Two methods are compared on the same test examples of the same seeds. The interval is of a bootstrap in two stages
(Davison and Hinkley 1997, §3.8): seeds are drawn with replacement, as training is random, and within each seed the
units of every group (examples of a domain, or judging clients), as the test data are a sample. Of a unit only the
difference counts; that of an example is −1, 0 or 1, so that a sample of n examples is one draw of a multinomial: the
cost is O(replicates · seeds · groups · different differences), whatever the number of examples.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Shaped

from collegium.core.random_streams import stream

REPLICATES = 10_000
LEVEL = 0.95
# domain → which of its examples were answered right; or "" → the share that each client got right
Scores = Mapping[str, Shaped[np.ndarray, " _"]]


@dataclass(frozen=True)
class Difference:
    """Mean difference of accuracies (macro averages over the groups), as a fraction, and its interval."""

    mean: float
    low: float
    high: float


def paired_difference(ours: Mapping[int, Scores], theirs: Mapping[int, Scores]) -> Difference | None:
    """How much more one method gets right than another, over the seeds that both have; None where there is none.

    Args:
        ours, theirs: random seed → scores between 0 and 1, of the same units.

    Raises:
        ValueError: a seed for which the units are not the same.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    replicates = []  # of each seed, macro averages of resampled examples; [REPLICATES]
    points = []
    for seed in seeds:
        if ours[seed].keys() != theirs[seed].keys():
            raise ValueError(f"seed {seed}: {sorted(ours[seed])} and {sorted(theirs[seed])} are not the same domains")
        random = stream(seed, "paired bootstrap")
        by_domain = [_differences(ours[seed][name], theirs[seed][name], random) for name in sorted(ours[seed])]
        points.append(np.mean([point for point, _ in by_domain]))
        replicates.append(np.mean([drawn for _, drawn in by_domain], axis=0))
    random = stream(0, "paired bootstrap of seeds")
    drawn, samples = (random.integers(most, size=(REPLICATES, len(seeds))) for most in (len(seeds), REPLICATES))
    means = np.stack(replicates)[drawn, samples].mean(axis=1)  # a seed that is drawn twice brings two samples
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(float(np.mean(points)), float(low), float(high))


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and the sample's standard deviation where there are two values or more."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def _differences(
    ours: Shaped[np.ndarray, " _"], theirs: Shaped[np.ndarray, " _"], random: np.random.Generator
) -> tuple[float, Float64[np.ndarray, " replicates"]]:
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} examples are not the same")
    gains = ours.astype(float) - theirs.astype(float)
    values, counts = np.unique(gains, return_counts=True)
    drawn = random.multinomial(len(gains), counts / len(gains), size=REPLICATES)  # [replicates, values]
    return float(gains.mean()), drawn @ values / len(gains)
