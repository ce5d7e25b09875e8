"""The rows of a suite's tables, out of its finished cells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collegium.benchmarks.cells import Cell
from collegium.benchmarks.kind import Found, Kind, Outcome
from collegium.benchmarks.records import Key, Record, records_of
from collegium.benchmarks.statistics import Difference, Scores, mean_std, paired_difference
from collegium.benchmarks.suite import Suite
from collegium.core.errors import InputError, RecipeError
from collegium.core.load_recipe import parse_settings
from collegium.core.recipe import Recipe
from collegium.federated.recipe import FederatedRecipe

MeanStd = tuple[float, float | None]


@dataclass(frozen=True)
class Row:
    """One method on one case, over all its seeds.

    Attributes:
        case: "" where the suite has none.
        method: `variant`, or `variant/method` for the others that were run beside it.
        values: by column (mean, std over seeds); accuracies and shares in percent.
        difference: of the mean accuracy to the reference's; None where they answered nothing in common.
        also: the same of other scores, by the keys of `Kind.also`.
        chosen: values of the keys that were tuned.
    """

    case: str
    method: str
    note: str
    seeds: list[int]
    values: dict[str, MeanStd]
    difference: Difference | None
    chosen: dict[str, Any] = field(default_factory=dict)
    also: dict[str, Difference | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """What a suite has found so far.

    Attributes:
        kind: of all its cells.
        failures: name of a cell → reason.
        missing: names of cells that were not run.
        records: one for each cell and method, candidates too, as JSON.
        stages: of the first variant (and case), which finds nothing done: stage → seconds, and peak memory in MB, over
            seeds.
    """

    suite: Suite
    kind: Kind
    rows: list[Row]
    failures: dict[str, str]
    missing: list[str]
    records: list[Record]
    stages: dict[str, tuple[MeanStd, MeanStd]]


def gather_results(
    suite: Suite, cells: Sequence[Cell], candidates: Sequence[Cell] = (), kept: Mapping[Key, Outcome] | None = None
) -> Results:
    """Read every finished cell and compare each method with the suite's reference, on what both were judged by.

    Args:
        candidates: among which the cells chose; only what failed of them is told.
        kept: cells of earlier records. What is not found again, as it has other settings, is in no row, and stays among
            the records: its run folder may be gone.

    Raises:
        RecipeError: the cells are not of one kind.
        InputError: the reference is no method of its variant.
    """
    kind = cells[0].kind
    if any(cell.kind is not kind for cell in cells):
        raise RecipeError(f"The suite {suite.name} has recipes of federations and others; they have no common table.")
    outcomes = {cell.name: found for cell in [*candidates, *cells] if (found := cell.outcome()) is not None}
    by_method: dict[tuple[str, str], dict[int, tuple[Cell, Found]]] = {}  # case, method → seed → what it found
    records: list[Record] = []
    for cell in [*cells, *candidates]:
        outcome = outcomes.get(cell.name)
        if outcome is None:
            continue
        key = cell.case, cell.variant, cell.random_seed
        settings, first = cell.recipe.model_dump(mode="json"), records[0] if records else None
        records += records_of(suite.name, key, outcome, settings, cell.chosen or {}, first)
    written = {(cell.case, cell.variant, cell.random_seed) for cell in [*cells, *candidates] if cell.name in outcomes}
    for key, outcome in (kept or {}).items():
        if key not in written and (settings := _as_now(outcome, cells[0].recipe)) is not None:
            records += records_of(suite.name, key, outcome, settings, {}, records[0] if records else None)
    for cell in cells:
        for beside, found in outcomes[cell.name].found.items() if cell.name in outcomes else ():
            name = f"{cell.variant}/{beside}" if beside else cell.variant
            by_method.setdefault((cell.case, name), {})[cell.random_seed] = cell, found
    _check_reference(suite.reference, [name for _, name in by_method])
    by_reference = {case: found for (case, name), found in by_method.items() if name == suite.reference}
    rows = [_row(suite, case, name, by_seed, by_reference.get(case, {})) for (case, name), by_seed in by_method.items()]
    failed = [cell for cell in [*candidates, *cells] if cell.name not in outcomes and cell.failure.is_file()]
    failures = {cell.name: cell.failure.read_text("utf-8") for cell in failed}
    missing = [cell.name for cell in cells if cell.name not in {**outcomes, **failures}]
    first = next(iter(suite.variants)), cells[0].case
    done = [cell.name for cell in cells if (cell.variant, cell.case) == first and cell.name in outcomes]
    return Results(suite, kind, rows, failures, missing, records, _stages([outcomes[name].stages for name in done]))


def _as_now(outcome: Outcome, recipe: Recipe | FederatedRecipe) -> dict[str, Any] | None:
    """Settings with the keys of now; None where one of them is none any more."""
    try:
        return parse_settings(outcome.settings, type(recipe)).model_dump(mode="json")
    except RecipeError:
        return None


def _row(
    suite: Suite,
    case: str,
    name: str,
    by_seed: Mapping[int, tuple[Cell, Found]],
    reference: Mapping[int, tuple[Cell, Found]],
) -> Row:
    found = {seed: by_seed[seed][1] for seed in sorted(by_seed)}
    theirs = {seed: one for seed, (_, one) in reference.items() if seed in found and one.asked == found[seed].asked}

    def compared(scores: Callable[[Found], Scores]) -> Difference | None:
        if name == suite.reference:
            return None
        return paired_difference(
            {seed: scores(found[seed]) for seed in theirs}, {seed: scores(one) for seed, one in theirs.items()}
        )

    keys = dict.fromkeys(key for one in found.values() for key in one.values)
    return Row(
        case=case,
        method=name,
        note=suite.variants[name].note if name in suite.variants else "",
        seeds=list(found),
        values={key: mean_std([one.values[key] for one in found.values() if key in one.values]) for key in keys},
        difference=compared(lambda one: one.scores),
        chosen=next(iter(by_seed.values()))[0].chosen or {},
        also={key: compared(lambda one, key=key: one.also[key]) for key in next(iter(found.values())).also},
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
