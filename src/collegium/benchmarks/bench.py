"""A whole suite: its cells, then its table."""

from pathlib import Path

from collegium.benchmarks.cells import Cell, run_cells
from collegium.benchmarks.results import Results, gather_results
from collegium.benchmarks.suite import Suite, cell_recipe
from collegium.benchmarks.tables import write_tables


def bench(
    suite: Suite,
    path: Path,
    out: Path,
    overrides: list[str] | None = None,
    jobs: int = 1,
    threads: int | None = None,
    run: bool = True,
) -> Results:
    """Run what is not finished of a suite, and write its tables into `out`.

    Args:
        path: of the suite, beside which its recipes lie.
        overrides: `key=value` for the recipes of all cells.
        jobs: most cells at a time, each with `threads` threads.
        run: False = only the tables of what is there.

    Raises:
        RecipeError: a recipe of a cell is wrong; nothing was run.
        InputError: another start is at work in `out`.
    """
    cells = [
        Cell(variant, seed, cell_recipe(suite, path, variant, seed, overrides), out / f"seed-{seed}" / variant)
        for seed in suite.seeds
        for variant in suite.variants
        if seed in suite.seeds_of(variant)
    ]
    if run:
        run_cells(cells, jobs, threads)
    failures = {cell.name: cell.failure.read_text("utf-8") for cell in cells if cell.failure.is_file()}
    results = gather_results(suite, cells, failures)
    out.mkdir(parents=True, exist_ok=True)
    write_tables(results, out)
    return results
