"""`bench`: a suite of benchmarks, and its table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from collegium.cli.options import Out, Overrides, Quiet, Threads


def bench(
    suite: Annotated[str, typer.Argument(help="a suite of recipes/suites, or the path of one (YAML)")],
    out: Out = None,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="only this seed; may be given again")] = None,
    variants: Annotated[
        list[str] | None, typer.Option("--variant", help="run only this variant; may be given again")
    ] = None,
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="seeds side by side, a process each")] = 1,
    threads: Threads = None,
    table: Annotated[bool, typer.Option("--table", help="run nothing: the table of what is finished")] = False,
    quiet: Quiet = False,
) -> None:
    """Run recipes × variants × seeds; a killed suite goes on where it stopped. Exit code 1 if a cell failed."""
    from collegium.benchmarks.run_suite import run_suite, tabulate
    from collegium.benchmarks.suite import load_suite
    from collegium.benchmarks.tables import FILES, markdown

    found, path = load_suite(suite)
    folder = out or Path("runs") / "bench" / found.name
    if not table:
        run_suite(found.part(seeds, variants), path, folder, overrides, jobs, threads)
    results = tabulate(found, path, folder, overrides)
    console = Console()
    if console.is_terminal:
        console.print(Markdown(markdown(results)))
    else:
        console.print(markdown(results), markup=False, highlight=False, soft_wrap=True)
    for file in FILES:
        console.print(str(folder / file), markup=False, highlight=False, soft_wrap=True)
    if results.failures:
        raise typer.Exit(1)
