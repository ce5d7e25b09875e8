"""`collegium export`: a unified decoder as an architecture that other programs serve."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from collegium.cli.options import Quiet


class To(StrEnum):
    """What a unified model can become."""

    MIXTRAL = "mixtral"
    QWEN2_MOE = "qwen2-moe"
    QWEN3_MOE = "qwen3-moe"
    FLEXOLMO = "flexolmo"
    GGUF = "gguf"


def export(
    model: Annotated[Path, typer.Argument(help="a unified model with a language-model head")],
    to: Annotated[To, typer.Option("--to", help="the architecture; gguf = a file for llama.cpp")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write")],
    quiet: Quiet = False,
) -> None:
    """Write a unified decoder as an architecture that others serve: the same model, or an error that says why not."""
    from collegium.unify.export import export_model
    from collegium.unify.export_gguf import export_gguf

    artifact = export_gguf(model, out) if to is To.GGUF else export_model(model, to.value, out)
    size = sum(entry["bytes"] for entry in artifact.files.values())
    what = f"{artifact.path}: {to.value}, {size:,} bytes\nsha256 {artifact.sha256}"
    Console().print(what, markup=False, highlight=False, soft_wrap=True)
