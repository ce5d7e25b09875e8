"""`collegium export`: a unified decoder as an architecture that other programs serve."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from collegium.cli.options import Quiet, Threads
from collegium.core.errors import InputError
from collegium.reports.wording import clean, percent


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
    drop_context: Annotated[
        bool,
        typer.Option(
            "--drop-context",
            help="give up context, router bias and reused decisions: tune routers without them on public texts, and "
            "say how often the result agrees with the model",
        ),
    ] = False,
    pool: Annotated[Path | None, typer.Option("--pool", help="with --drop-context: the public texts")] = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Write a unified decoder as an architecture that others serve: the same model, or an error that says why not."""
    from collegium.selection.pool import read_pool
    from collegium.unify.export import AGREEMENT, export_model
    from collegium.unify.export_gguf import export_gguf

    if drop_context != (pool is not None):
        raise InputError(
            "--drop-context and --pool go together.",
            got="--pool alone" if pool is not None else "--drop-context alone",
            do="routers are tuned on a pool (`collegium pool`), for nothing else is one needed",
        )
    public = None if pool is None else read_pool(pool)
    artifact = export_gguf(model, out, public) if to is To.GGUF else export_model(model, to.value, out, public)
    console = Console(highlight=False)
    if AGREEMENT in artifact.files:
        _print_agreement(json.loads((artifact.path / AGREEMENT).read_bytes()), console)
    size = sum(entry["bytes"] for entry in artifact.files.values())
    what = f"{artifact.path}: {to.value}, {size:,} bytes\nsha256 {artifact.sha256}"
    console.print(what, markup=False, soft_wrap=True)


def _print_agreement(agreement: dict[str, Any], console: Console) -> None:
    """Shares of held-out tokens in %, beside those of dropping the context without tuning."""
    table = Table("the same as the exact model, % of tokens", "only dropped", "tuned")
    rows = [("most probable next token", agreement["next_token"])]
    rows += [(f"expert in layer {layer}", share) for layer, share in agreement["layers"].items()]
    for name, share in agreement["experts"].items():
        rows.append((f"expert where it is {clean(name)} ({percent(agreement['expert_shares'][name])} %)", share))
    for what, share in rows:
        cells = ["–", "–"] if share is None else [percent(share["dropped"]), percent(share["retuned"])]
        table.add_row(Text(what), *cells)
    console.print(table)
    console.print(
        f"Tuned on {agreement['tuned_tokens']:,} tokens of the pool, judged on {agreement['judged_tokens']:,} others.",
        markup=False,
    )
