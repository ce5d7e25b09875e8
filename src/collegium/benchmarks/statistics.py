"""Mean ± std over seeds, and paired differences with a bootstrap interval.

Two methods are compared on the same test examples of the same seeds. The interval is of a bootstrap in two stages
(Davison and Hinkley 1997, §3.8): seeds are drawn with replacement, as training is random, and within each seed the
examples of every domain, as the test data are a sample. Of an example only the difference counts, −1, 0 or 1, so that
a sample of n examples is one draw of a multinomial: the cost is O(replicates · seeds · domains), whatever the number
of examples.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from collegium.core.random_streams import stream

REPLICATES = 10_000
LEVEL = 0.95
Right = Mapping[str, Bool[np.ndarray, " _"]]  # domain → which of its examples were answered right


@dataclass(frozen=True)
class Difference:
    """Mean difference of macro-average accuracies, as a fraction, and its interval."""

    mean: float
    low: float
    high: float


def paired_difference(ours: Mapping[int, Right], theirs: Mapping[int, Right]) -> Difference | None:
    """How much more one method gets right than another, over the seeds that both have; None where there is none.

    Args:
        ours, theirs: random seed → answers, on the same examples.

    Raises:
        ValueError: a seed for which the examples are not the same.
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
    ours: Bool[np.ndarray, " _"], theirs: Bool[np.ndarray, " _"], random: np.random.Generator
) -> tuple[float, Float64[np.ndarray, " replicates"]]:
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} examples are not the same")
    gains = ours.astype(int) - theirs.astype(int)
    shares = np.array([(gains == value).mean() for value in (-1, 0, 1)])
    counts = random.multinomial(len(gains), shares, size=REPLICATES)  # [replicates, 3]
    return float(gains.mean()), (counts[:, 2] - counts[:, 0]) / len(gains)
