"""`collegium push`: a unified model, with its card and ledger, on a model hub."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from collegium.cli.options import Quiet
from collegium.reports.wording import clean


def push(
    model: Annotated[Path, typer.Argument(help="a unified model (`collegium unify`)")],
    repository: Annotated[str, typer.Argument(metavar="REPO", help="on the hub: OWNER/NAME; made where there is none")],
    private: Annotated[
        bool, typer.Option("--private", help="make the new repository private; an existing public one is refused")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="branch to upload to, made where there is none")] = None,
    quiet: Quiet = False,
) -> None:
    """Upload a unified model to the hub: the files of its manifest, with card and ledger, and nothing else."""
    from huggingface_hub.utils import disable_progress_bars

    from collegium.unify.push import push_model

    if quiet or not sys.stderr.isatty():
        disable_progress_bars()
    address = push_model(model, repository, private, revision)
    Console().print(clean(address), markup=False, highlight=False, soft_wrap=True)
