"""A whole suite: its cells are run, then its table is made of all that are finished."""

from pathlib import Path

from collegium.benchmarks.cells import Cell, run_cells
from collegium.benchmarks.results import Results, gather_results
from collegium.benchmarks.suite import Suite, cell_recipe
from collegium.benchmarks.tables import write_tables


def run_suite(
    suite: Suite,
    path: Path,
    out: Path,
    overrides: list[str] | None = None,
    jobs: int = 1,
    threads: int | None = None,
) -> None:
    """Run the cells of a suite that are not finished, in `out`; failures stand there too.

    Args:
        path: of the suite, beside which its recipes lie.
        overrides: `key=value` for the recipes of all cells.
        jobs: most cells at a time, each with `threads` threads.

    Raises:
        RecipeError: a recipe of a cell is wrong; nothing was run.
        InputError: another start is at work in `out`.
    """
    run_cells(_cells(suite, path, out, overrides), jobs, threads)


def tabulate(suite: Suite, path: Path, out: Path, overrides: list[str] | None = None) -> Results:
    """Gather what is finished in `out`, and write the tables there."""
    results = gather_results(suite, _cells(suite, path, out, overrides))
    out.mkdir(parents=True, exist_ok=True)
    write_tables(results, out)
    return results


def _cells(suite: Suite, path: Path, out: Path, overrides: list[str] | None) -> list[Cell]:
    return [
        Cell(variant, seed, cell_recipe(suite, path, variant, seed, overrides), out / f"seed-{seed}" / variant)
        for seed in suite.seeds
        for variant in suite.variants
        if seed in suite.seeds_of(variant)
    ]
