"""`run` and `report`: the whole flow on one machine, and its page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from collegium.cli.options import Out, Overrides, Quiet, Threads
from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import Recipe


def run(
    recipe: Annotated[Path, typer.Argument(help="simulation recipe (YAML)")],
    out: Out = None,
    overrides: Overrides = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Run the whole flow on one machine, simulating every owner; killed runs go on where they stopped."""
    from collegium.flow.simulate import simulate
    from collegium.reports.reading import read_run_summary
    from collegium.reports.tables import print_summary

    folder = out or Path("runs") / recipe.stem
    summary = simulate(load_recipe(recipe, Recipe, overrides), folder)
    console = Console()
    print_summary(read_run_summary(folder), console)
    console.print(f"summary: {summary}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"report:  {folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"model:   {folder / 'model'}", markup=False, highlight=False, soft_wrap=True)


def report(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="file to write")] = None,
) -> None:
    """Write the HTML page of a run."""
    from collegium.reports.page import write_report

    Console().print(str(write_report(folder, out)), markup=False, highlight=False, soft_wrap=True)
