"""The `collegium` command: options in, one function call, one clear error out.

Exit codes: 0 done, 1 the run failed, 2 the input is wrong, 130 interrupted (run the same command again to go on).
"""

import os
import sys

import click
import typer
from rich.console import Console

from collegium.cli import (
    bench,
    coordinator,
    explain,
    export,
    federate,
    look,
    merge,
    owner,
    owners,
    push,
    select,
    simulation,
)
from collegium.core.errors import CollegiumError
from collegium.reports.wording import clean

INTERRUPTED = 130

app = typer.Typer(
    help="Experts trained on private data become one Mixture-of-Experts, without the data leaving its owner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(simulation.run)
app.command("pool")(coordinator.pool)
app.command("charter")(coordinator.charter)
app.command("select")(select.select)
app.command("contribute")(owner.contribute)
app.command("inspect")(look.inspect)
app.command("unify")(coordinator.unify)
app.command("merge")(merge.merge)
app.command("evaluate")(look.evaluate)
app.command("predict")(look.predict)
app.command("explain")(explain.explain)
app.add_typer(owners.app, name="owners")
app.command("export")(export.export)
app.command("push")(push.push)
app.command("report")(simulation.report)
app.command("bench")(bench.bench)
app.command("federate")(federate.federate)


def main() -> None:
    """Entry point of the console script."""
    _silence_libraries()
    errors = Console(stderr=True, highlight=False)
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except CollegiumError as error:
        errors.print("error: ", style="bold red", end="", markup=False)
        errors.print(clean(error, keep_lines=True), markup=False, soft_wrap=True)  # names may come from others
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        errors.print("interrupted; the same command goes on from here", markup=False)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _silence_libraries() -> None:
    """Bars and warnings of the libraries would tear ours apart."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


if __name__ == "__main__":
    main()
