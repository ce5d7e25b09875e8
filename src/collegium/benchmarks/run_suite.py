"""A whole suite: its cells are run, then its table is made of all that are finished."""

from pathlib import Path

from collegium.benchmarks.cells import Cell, run_cells
from collegium.benchmarks.records import read_records
from collegium.benchmarks.results import Results, gather_results
from collegium.benchmarks.suite import Suite, cell_recipe
from collegium.benchmarks.tables import RECORDS, write_tables
from collegium.benchmarks.tuning import best, candidates
from collegium.reports.federated_curves import save_figure

FIGURES = "figures"


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
    plan = _Plan(suite, path, out, overrides or [])
    cells = plan.cells()  # what is wrong with a recipe is found before anything is run
    if plan.choices:
        run_cells(plan.candidates(), jobs, threads)
        cells = plan.cells()
    run_cells([cell for cell in cells if cell.chosen is not None], jobs, threads)


def tabulate(suite: Suite, path: Path, out: Path, overrides: list[str] | None = None) -> Results:
    """Gather what is finished in `out`, and write tables there, and figures where there are some."""
    plan = _Plan(suite, path, out, overrides or [])
    results = plan.results()
    out.mkdir(parents=True, exist_ok=True)
    write_tables(results, out)
    _draw(results, plan.cells(), out / FIGURES)
    return results


def compare(suite: Suite, path: Path, out: Path, overrides: list[str] | None = None) -> Results:
    """Gather what is finished in `out`, and write nothing.

    Raises:
        InputError: the suite's reference is no method of its variant.
    """
    return _Plan(suite, path, out, overrides or []).results()


def _draw(results: Results, cells: list[Cell], folder: Path) -> None:
    """`folder/NAME[-CASE]` as PNG and SVG, of each case."""
    by_case: dict[str, dict[str, dict[int, Path]]] = {}
    finished = {(row.case, row.method, seed) for row in results.rows for seed in row.seeds}
    for cell in cells:
        if (cell.case, cell.variant, cell.random_seed) in finished and cell.has_run():
            by_case.setdefault(cell.case, {}).setdefault(cell.variant, {})[cell.random_seed] = cell.folder
    for case, folders in by_case.items():
        for name, figure in results.kind.figures(case or results.suite.name, folders).items():
            save_figure(figure, folder / (f"{name}-{case}" if case else name))


class _Plan:
    """The cells of a suite; of choices that are not yet made, only the candidates are known.

    Attributes:
        choices: case, variant → the candidates of those that choose.
    """

    def __init__(self, suite: Suite, path: Path, out: Path, overrides: list[str]):
        self.suite, self.path, self.out, self.overrides = suite, path, out, overrides
        self.places = [(case, variant) for variant in suite.variants for case in suite.case_names(variant)]
        self.places.sort(key=lambda place: list(suite.cases or [""]).index(place[0]))  # a case after the other
        self.kept = read_records(out / RECORDS)
        made = {place: candidates(suite, path, out, overrides, *place, self.kept) for place in self.places}
        self.choices = {place: cells for place, cells in made.items() if cells and suite.seeds_of(place[1])}

    def candidates(self) -> list[Cell]:
        """All of them."""
        return [cell for cells in self.choices.values() for cell in cells]

    def cells(self) -> list[Cell]:
        """All but the candidates, of one case and seed in the order of the variants; `chosen` as it is now."""
        return [
            self._cell(case, variant, seed)
            for seed in self.suite.seeds
            for case, variant in self.places
            if seed in self.suite.seeds_of(variant)
        ]

    def results(self) -> Results:
        return gather_results(self.suite, self.cells(), self.candidates(), self.kept)

    def _cell(self, case: str, variant: str, seed: int) -> Cell:
        offered = self.choices.get((case, variant))
        chosen = best(offered) if offered else {}
        recipe = cell_recipe(self.suite, self.path, variant, seed, self.overrides, case, chosen)
        return Cell(
            case,
            variant,
            seed,
            recipe,
            self.out / case / f"seed-{seed}" / variant,
            self.out,
            chosen,
            self.suite.variants[variant].others,
            self.kept.get((case, variant, seed)),
        )
