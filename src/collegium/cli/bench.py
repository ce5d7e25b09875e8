"""`bench`: a suite of benchmarks, and its table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from collegium.cli.options import Out, Overrides, Quiet, Threads
from collegium.core.errors import InputError


def bench(
    suite: Annotated[
        str, typer.Argument(help="a suite of recipes/suites, the path of one (YAML), or joint-vs-sequential")
    ],
    out: Out = None,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="only this seed; may be given again")] = None,
    variants: Annotated[
        list[str] | None, typer.Option("--variant", help="run only this variant; may be given again")
    ] = None,
    cases: Annotated[list[str] | None, typer.Option("--case", help="run only this case; may be given again")] = None,
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="cases and seeds side by side, a process each")] = 1,
    threads: Threads = None,
    table: Annotated[bool, typer.Option("--table", help="run nothing: the table of what is finished")] = False,
    reference: Annotated[
        str | None, typer.Option("--reference", help="with --table: print differences to this method; writes nothing")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="of joint-vs-sequential: smaller, in less than 45 s")] = False,
    quiet: Quiet = False,
) -> None:
    """Run recipes × variants × seeds; a killed suite goes on where it stopped. Exit code 1 if a cell failed."""
    if suite == "joint-vs-sequential":
        _joint_vs_sequential(out, quick, given=any((seeds, variants, cases, overrides, jobs > 1, table, reference)))
        return
    if quick:
        raise InputError("--quick is for joint-vs-sequential.", do="run the suites quick or ddome-quick")
    from collegium.benchmarks.run_suite import FIGURES, compare, run_suite, tabulate
    from collegium.benchmarks.suite import load_suite
    from collegium.benchmarks.tables import FILES, markdown

    found, path = load_suite(suite)
    folder = out or Path("runs") / "bench" / found.name
    if reference is not None:
        if not table:
            raise InputError("--reference is for --table.", do="the suite's file names its own reference")
        _show(markdown(compare(found.compared_with(reference), path, folder, overrides)), [])
        return
    if not table:
        run_suite(found.part(seeds, variants, cases), path, folder, overrides, jobs, threads)
    results = tabulate(found, path, folder, overrides)
    _show(markdown(results), [*(folder / name for name in FILES), *sorted((folder / FIGURES).glob("*.png"))])
    if results.failures:
        raise typer.Exit(1)


def _joint_vs_sequential(out: Path | None, quick: bool, given: bool) -> None:
    from collegium.benchmarks.joint_vs_sequential import NAME, run_joint_vs_sequential

    if given:
        raise InputError(f"{NAME} has no options of suites.", expected="--out, --quick, --threads or --quiet")
    folder = out or Path("runs") / "bench" / NAME
    _show(run_joint_vs_sequential(folder, quick), sorted(folder.glob("*.*")))


def _show(table: str, files: list[Path]) -> None:
    console = Console()
    if console.is_terminal:
        console.print(Markdown(table))
    else:
        console.print(table, markup=False, highlight=False, soft_wrap=True)
    for file in files:
        console.print(str(file), markup=False, highlight=False, soft_wrap=True)
