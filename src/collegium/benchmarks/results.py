"""The rows of a suite's table, out of its finished cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collegium.benchmarks.cells import Cell
from collegium.benchmarks.statistics import Difference, Right, mean_std, paired_difference
from collegium.benchmarks.suite import Suite
from collegium.core.artifacts import read_artifact
from collegium.core.errors import InputError
from collegium.flow.compare import ANSWERS
from collegium.flow.kept_answers import read_answers

OURS = "unified"
MeanStd = tuple[float, float | None]


@dataclass(frozen=True)
class Row:
    """One method over all its seeds, in percent.

    Attributes:
        method: `variant` for its unified model, `variant/method` for the others that were run beside it.
        union: domain, and `mean` → (mean, std over seeds); all labels of all domains compete.
        told: the same where only a domain's own labels compete.
        routed: share of examples that went to their own domain's expert; None for models without a router.
        difference: of the mean of `union` to the reference's, in points; None where they answered nothing in common.
    """

    method: str
    note: str
    seeds: list[int]
    union: dict[str, MeanStd]
    told: dict[str, MeanStd]
    routed: MeanStd | None
    difference: Difference | None


@dataclass(frozen=True)
class Results:
    """What a suite has found so far.

    Attributes:
        failures: name of a cell → reason.
        missing: names of cells that were not run.
        cells: a record for each cell and method, as JSON.
        stages: of the first variant, which finds nothing done: stage → seconds, and peak memory in MB, over seeds.
    """

    suite: Suite
    rows: list[Row]
    failures: dict[str, str]
    missing: list[str] = field(default_factory=list)
    cells: list[dict] = field(default_factory=list)
    stages: dict[str, tuple[MeanStd, MeanStd]] = field(default_factory=dict)


def gather_results(suite: Suite, cells: Sequence[Cell]) -> Results:
    """Read every finished cell and compare each method with the suite's reference, on the same examples."""
    summaries = {cell.name: found for cell in cells if (found := cell.summary()) is not None}
    failures = {
        cell.name: cell.failure.read_text("utf-8")
        for cell in cells
        if cell.name not in summaries and cell.failure.is_file()
    }
    by_method: dict[str, dict[int, dict]] = {}  # method → seed → accuracy
    answers: dict[str, dict[int, Right]] = {}
    asked: dict[str, dict[int, str]] = {}  # method → seed → digest of the test examples
    routed: dict[str, list[float]] = {}
    records = []
    for cell in cells:
        summary = summaries.get(cell.name)
        if summary is None:
            continue
        found = read_answers(cell.folder / "evaluation" / ANSWERS)
        texts = read_artifact(cell.folder / "evaluation", verify=False).inputs["texts"]
        for method in summary["accuracy"] if suite.variants[cell.variant].others else [OURS]:
            name = cell.variant if method == OURS else f"{cell.variant}/{method}"
            by_method.setdefault(name, {})[cell.random_seed] = summary["accuracy"][method]
            answers.setdefault(name, {})[cell.random_seed] = {
                domain: one.union for domain, one in found[method].items()
            }
            asked.setdefault(name, {})[cell.random_seed] = texts
            if method == OURS and summary["routing"]["sequence"] is not None:
                routed.setdefault(name, []).append(summary["routing"]["sequence"])
            records.append(_record(suite, cell, name, method, summary))
    reference = suite.reference
    _check_reference(reference, list(answers))

    def compare(name: str) -> Difference | None:
        """With the reference, on the seeds in which both answered the same examples."""
        common = asked.get(reference, {}).items() & asked[name].items()
        ours, theirs = ({seed: answers[one][seed] for seed, _ in common} for one in (name, reference))
        return paired_difference(ours, theirs)

    rows = [
        Row(
            method=name,
            note=suite.variants[name].note if name in suite.variants else "",
            seeds=sorted(by_seed),
            union=_over_seeds(by_seed, "union"),
            told=_over_seeds(by_seed, "told"),
            routed=_percent(routed[name]) if name in routed else None,
            difference=None if name == reference else compare(name),
        )
        for name, by_seed in by_method.items()
    ]
    missing = [cell.name for cell in cells if cell.name not in {**summaries, **failures}]
    first = next(iter(suite.variants))
    stages = [summaries[cell.name]["stages"] for cell in cells if cell.variant == first and cell.name in summaries]
    return Results(suite, rows, failures, missing, records, _stages(stages))


def _check_reference(reference: str, methods: Sequence[str]) -> None:
    """A finished variant without the method that all are compared with would leave a column empty."""
    variant, _, method = reference.partition("/")
    beside = [name.partition("/")[2] for name in methods if name.startswith(f"{variant}/")]
    if variant in methods and method and method not in beside:
        raise InputError(f"The suite's reference {reference} is no method of that variant.", expected=", ".join(beside))


def _stages(found: Sequence[dict]) -> dict[str, tuple[MeanStd, MeanStd]]:
    return {
        stage: (
            mean_std([stages[stage]["seconds"] for stages in found]),
            mean_std([stages[stage]["peak_bytes"] / 1e6 for stages in found]),
        )
        for stage in (found[0] if found else {})
    }


def _over_seeds(by_seed: Mapping[int, dict], setting: str) -> dict[str, MeanStd]:
    domains = next(iter(by_seed.values()))[setting]
    return {name: _percent([by_seed[seed][setting][name] for seed in sorted(by_seed)]) for name in domains}


def _percent(fractions: Sequence[float]) -> MeanStd:
    return mean_std([100 * value for value in fractions])


def _record(suite: Suite, cell: Cell, name: str, method: str, summary: dict) -> dict:
    stages = summary["stages"].values()
    metrics = {
        f"{setting}.{domain}": value
        for setting, by_domain in summary["accuracy"][method].items()
        for domain, value in by_domain.items()
    }
    if method == OURS:
        metrics["routing.sequence"] = summary["routing"]["sequence"]
    return {
        "benchmark": suite.name,
        "method": name,
        "case": {"variant": cell.variant, "set": {**suite.settings, **suite.variants[cell.variant].settings}},
        "random_seed": cell.random_seed,
        "threads": summary["created_with"]["threads"],
        "seconds": [sum(stage["seconds"] for stage in stages)],
        "peak_bytes": max(stage["peak_bytes"] for stage in stages),
        "metrics": metrics,
        "versions": summary["created_with"],
    }
