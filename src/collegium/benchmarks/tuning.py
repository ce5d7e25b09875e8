"""The choice of settings that a suite tunes: candidates on validation data, the best of which a variant takes.

Every variant has the same candidates, so the same budget. They run with the suite's first seed as cells like all others
(`OUT/[CASE/]choices/seed-0/VARIANT@KEY=VALUE`), so that a killed search goes on where it stopped. The test data are
never looked at: validation clients are others than test clients, a validation split is another one than the test split.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collegium.benchmarks.cells import KINDS, Cell
from collegium.benchmarks.kind import Outcome
from collegium.benchmarks.records import Key
from collegium.benchmarks.suite import Suite, cell_recipe

FOLDER = "choices"


def candidates(
    suite: Suite,
    path: Path,
    out: Path,
    overrides: list[str],
    case: str,
    variant: str,
    kept: Mapping[Key, Outcome] | None = None,
) -> list[Cell]:
    """The cells of a variant among which it chooses; none where it has nothing to choose."""
    keys = [key for key in suite.tune if not _has(suite.variants[variant].settings, key)]
    if not keys:
        return []
    seed = suite.seeds[0]
    kind = KINDS[type(cell_recipe(suite, path, variant, seed, overrides, case))]
    judged = [*overrides, *(f"{key}={value}" for key, value in kind.validation.items())]
    cells = []
    for values in itertools.product(*(suite.tune[key] for key in keys)):
        chosen = dict(zip(keys, values, strict=True))
        recipe = cell_recipe(suite, path, variant, seed, judged, case, chosen)
        name = "@".join([variant, *(f"{key}={value}" for key, value in chosen.items())]).replace("/", "-")
        folder = out / case / FOLDER / f"seed-{seed}" / name
        cells.append(Cell(case, name, seed, recipe, folder, out, chosen, kept=(kept or {}).get((case, name, seed))))
    return cells


def best(cells: list[Cell]) -> dict[str, Any] | None:
    """The values of the candidate with the highest score on validation data; of equal ones the first.

    Candidates that failed are left out. None where one may still be run, or none is finished.
    """
    scores = []
    for cell in cells:
        outcome = cell.outcome()
        if outcome is not None:
            scores.append((outcome.found[""].values[cell.kind.judged], cell))
        elif not cell.failure.is_file():
            return None
    return max(scores, key=lambda one: one[0])[1].chosen if scores else None


def _has(settings: Mapping[str, Any], key: str) -> bool:
    """Whether settings give a dotted key a value, by its name or within a mapping."""
    return key in settings or any(
        isinstance(value, Mapping) and key.startswith(f"{given}.") and _has(value, key.removeprefix(f"{given}."))
        for given, value in settings.items()
    )
