"""Paired differences against a plain bootstrap, example by example, and against what is known beforehand."""

import numpy as np
import pytest

from collegium.benchmarks.statistics import mean_std, paired_difference


def answers(random, share, domains=("a", "b"), examples=200):
    return {name: random.random(examples) < share for name in domains}


def plain_bootstrap(ours, theirs, replicates=4000):
    """Seeds with replacement, then examples within each domain, as the definition says."""
    random = np.random.default_rng(1)
    seeds, means = sorted(ours), []
    for _ in range(replicates):
        drawn = []
        for seed in random.choice(seeds, len(seeds)):
            domains = []
            for name in ours[seed]:
                rows = random.integers(len(ours[seed][name]), size=len(ours[seed][name]))
                domains.append(ours[seed][name][rows].mean() - theirs[seed][name][rows].mean())
            drawn.append(np.mean(domains))
        means.append(np.mean(drawn))
    return np.quantile(means, [0.025, 0.975])


def test_the_interval_is_that_of_a_plain_bootstrap():
    random = np.random.default_rng(0)
    ours = {seed: answers(random, 0.8) for seed in range(3)}
    theirs = {seed: answers(random, 0.7) for seed in range(3)}
    found = paired_difference(ours, theirs)
    points = [np.mean([ours[s][d].mean() - theirs[s][d].mean() for d in ("a", "b")]) for s in ours]
    assert found.mean == pytest.approx(np.mean(points))
    assert [found.low, found.high] == pytest.approx(plain_bootstrap(ours, theirs), abs=0.006)


def test_units_may_have_shares_instead_of_answers():
    random = np.random.default_rng(0)
    ours, theirs = ({seed: {"": random.integers(5, size=30) / 4} for seed in range(3)} for _ in range(2))
    found = paired_difference(ours, theirs)
    assert found.mean == pytest.approx(np.mean([ours[seed][""].mean() - theirs[seed][""].mean() for seed in ours]))
    assert [found.low, found.high] == pytest.approx(plain_bootstrap(ours, theirs), abs=0.012)


def test_pairs_are_surer_than_what_is_not_paired():
    random = np.random.default_rng(0)
    base = answers(random, 0.7)
    better = {name: values.copy() for name, values in base.items()}
    for values in better.values():
        values[np.flatnonzero(~values)[:6]] = True  # six more of each, the others the same
    paired = paired_difference({0: better}, {0: base})
    alone = paired_difference({0: answers(random, 0.73)}, {0: base})
    assert paired.mean == pytest.approx(0.03)
    assert paired.low > 0
    assert paired.high - paired.low < 0.5 * (alone.high - alone.low)


def test_a_method_does_not_differ_from_itself():
    own = {seed: answers(np.random.default_rng(seed), 0.6) for seed in (0, 1)}
    found = paired_difference(own, own)
    assert (found.mean, found.low, found.high) == (0, 0, 0)


def test_only_common_seeds_are_compared():
    random = np.random.default_rng(0)
    ours, theirs = ({seed: answers(random, share) for seed in seeds} for share, seeds in ((1.0, (0, 1)), (0.0, (1, 2))))
    assert paired_difference(ours, theirs).mean == 1
    assert paired_difference({0: ours[0]}, {2: theirs[2]}) is None


@pytest.mark.parametrize("other", [{"a": np.ones(3, bool)}, {"b": np.ones(4, bool)}])
def test_other_examples_are_refused(other):
    with pytest.raises(ValueError, match="not the same"):
        paired_difference({0: {"a": np.ones(4, bool)}}, {0: other})


def test_the_same_answers_give_the_same_interval():
    random = np.random.default_rng(0)
    ours, theirs = {0: answers(random, 0.8)}, {0: answers(random, 0.7)}
    assert paired_difference(ours, theirs) == paired_difference(ours, theirs)


def test_one_value_has_no_deviation():
    assert mean_std([3.0]) == (3.0, None)
    assert mean_std([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
