"""The rows of a suite's tables, out of its finished cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collegium.benchmarks.cells import Cell
from collegium.benchmarks.kind import Found, Kind, Summary
from collegium.benchmarks.statistics import Difference, mean_std, paired_difference
from collegium.benchmarks.suite import Suite
from collegium.core.errors import InputError, RecipeError

MeanStd = tuple[float, float | None]


@dataclass(frozen=True)
class Row:
    """One method on one case, over all its seeds.

    Attributes:
        case: "" where the suite has none.
        method: `variant`, or `variant/method` for the others that were run beside it.
        values: by column (mean, std over seeds); accuracies and shares in percent.
        difference: of the mean accuracy to the reference's; None where they answered nothing in common.
        chosen: values of the keys that were tuned.
    """

    case: str
    method: str
    note: str
    seeds: list[int]
    values: dict[str, MeanStd]
    difference: Difference | None
    chosen: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """What a suite has found so far.

    Attributes:
        kind: of all its cells.
        failures: name of a cell → reason.
        missing: names of cells that were not run.
        records: one for each cell and method, as JSON.
        stages: of the first variant (and case), which finds nothing done: stage → seconds, and peak memory in MB, over
            seeds.
    """

    suite: Suite
    kind: Kind
    rows: list[Row]
    failures: dict[str, str]
    missing: list[str]
    records: list[dict]
    stages: dict[str, tuple[MeanStd, MeanStd]]


def gather_results(suite: Suite, cells: Sequence[Cell], candidates: Sequence[Cell] = ()) -> Results:
    """Read every finished cell and compare each method with the suite's reference, on what both were judged by.

    Args:
        candidates: among which the cells chose; only what failed of them is told.

    Raises:
        RecipeError: the cells are not of one kind.
        InputError: the reference is no method of its variant.
    """
    kind = cells[0].kind
    if any(cell.kind is not kind for cell in cells):
        raise RecipeError(f"The suite {suite.name} has recipes of federations and others; they have no common table.")
    summaries = {cell.name: found for cell in cells if (found := cell.summary()) is not None}
    by_method: dict[tuple[str, str], dict[int, tuple[Cell, Found]]] = {}  # case, method → seed → what it found
    records = []
    for cell in cells:
        summary = summaries.get(cell.name)
        if summary is None:
            continue
        for beside, found in kind.found(cell.folder, summary, suite.variants[cell.variant].others).items():
            name = f"{cell.variant}/{beside}" if beside else cell.variant
            by_method.setdefault((cell.case, name), {})[cell.random_seed] = cell, found
            records.append(_record(suite, cell, name, summary, found))
    _check_reference(suite.reference, [name for _, name in by_method])
    by_reference = {case: found for (case, name), found in by_method.items() if name == suite.reference}
    rows = [_row(suite, case, name, by_seed, by_reference.get(case, {})) for (case, name), by_seed in by_method.items()]
    failed = [cell for cell in [*candidates, *cells] if cell.name not in summaries and cell.failure.is_file()]
    failures = {cell.name: cell.failure.read_text("utf-8") for cell in failed if cell.summary() is None}
    missing = [cell.name for cell in cells if cell.name not in {**summaries, **failures}]
    first = next(iter(suite.variants)), cells[0].case
    done = [cell.name for cell in cells if (cell.variant, cell.case) == first and cell.name in summaries]
    stages = [summaries[name]["stages"] for name in done]
    return Results(suite, kind, rows, failures, missing, records, _stages(stages))


def _row(
    suite: Suite,
    case: str,
    name: str,
    by_seed: Mapping[int, tuple[Cell, Found]],
    reference: Mapping[int, tuple[Cell, Found]],
) -> Row:
    found = {seed: by_seed[seed][1] for seed in sorted(by_seed)}
    theirs = {seed: one for seed, (_, one) in reference.items() if seed in found and one.asked == found[seed].asked}
    compared = paired_difference(
        {seed: found[seed].scores for seed in theirs}, {seed: one.scores for seed, one in theirs.items()}
    )
    keys = dict.fromkeys(key for one in found.values() for key in one.values)
    return Row(
        case=case,
        method=name,
        note=suite.variants[name].note if name in suite.variants else "",
        seeds=list(found),
        values={key: mean_std([one.values[key] for one in found.values() if key in one.values]) for key in keys},
        difference=None if name == suite.reference else compared,
        chosen=next(iter(by_seed.values()))[0].chosen or {},
    )


def _check_reference(reference: str, methods: Sequence[str]) -> None:
    """A finished variant without the method that all are compared with would leave a column empty."""
    variant, _, method = reference.partition("/")
    beside = sorted({name.partition("/")[2] for name in methods if name.startswith(f"{variant}/")})
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


def _record(suite: Suite, cell: Cell, name: str, summary: Summary, found: Found) -> dict:
    stages = summary["stages"].values()
    case = {"variant": cell.variant, "set": {**suite.settings, **suite.variants[cell.variant].settings}}
    if suite.cases:
        of_case = suite.cases[cell.case].settings
        case |= {"case": cell.case, "set": {**suite.settings, **of_case, **suite.variants[cell.variant].settings}}
    if cell.chosen:
        case["chosen"] = cell.chosen
    return {
        "benchmark": suite.name,
        "method": name,
        "case": case,
        "random_seed": cell.random_seed,
        "threads": summary["created_with"]["threads"],
        "seconds": [sum(stage["seconds"] for stage in stages)],
        "peak_bytes": max(stage["peak_bytes"] for stage in stages),
        "metrics": found.metrics,
        "versions": summary["created_with"],
    }
