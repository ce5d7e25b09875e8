"""`owners list`, `remove` and `add`: who is in a unified model, and changing that without the others' data."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from collegium.cli.options import PoolPath, Quiet, SeedName, Threads
from collegium.core.artifacts import Artifact
from collegium.reports.wording import clean

app = typer.Typer(help="Who is in a unified model; add or remove an owner without the others' data.")

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="a unified model; it stays as it is")]
NewFolder = Annotated[Path, typer.Option("--out", "-o", help="folder of the new model")]


@app.command("list")
def list_owners(model: Annotated[Path, typer.Argument(metavar="MODEL", help="a unified model")]) -> None:
    """Owners of the experts, with their classes and what left them."""
    from collegium.unify.unified_folder import LEDGER, read_unified

    unified = read_unified(model)
    ledger = json.loads((unified.artifact.path / LEDGER).read_bytes())
    table = Table("owner", "contribution", "classes", "what left the owner")
    for owner in unified.encoder.model.config.expert_names:
        labels = [label for of, label in unified.classes.names if of == owner]
        released = ", ".join(str(entry.get("what")) for entry in ledger.get(owner, []))
        sha256 = unified.artifact.inputs.get(f"contribution:{owner}", "")[:16]
        table.add_row(*(Text(clean(cell)) for cell in (owner, sha256, ", ".join(labels), released)))
    console = Console(highlight=False)
    console.print(table)
    if unified.encoder.model.config.fallback:
        console.print("A token may also take the seed model's own feed-forward network (fallback).", markup=False)
    if early := unified.encoder.model.config.warmup_tokens:
        console.print(
            f"Tokens with fewer than {early} up to themselves take the seed model's own (warm-up).", markup=False
        )


@app.command("remove")
def remove(
    model: Model,
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="its name")],
    out: NewFolder,
    quiet: Quiet = False,
) -> None:
    """Write the model without an owner, and say what of its influence remains."""
    from collegium.unify.membership import remove_owner

    _done(remove_owner(model, owner, out))


@app.command("add")
def add(
    model: Model,
    contribution: Annotated[Path, typer.Argument(metavar="CONTRIBUTION", help="of the new owner")],
    charter_path: Annotated[Path, typer.Option("--charter", help="the charter of the contribution")],
    pool_path: PoolPath,
    seed_model: SeedName,
    out: NewFolder,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Write the model with one more owner, from its contribution alone; joint tuning is not run again."""
    from collegium.models.seed_model import load_seed_model
    from collegium.owner.charter import check_seed, read_charter
    from collegium.selection.pool import read_pool
    from collegium.unify.membership import add_owner

    agreed = read_charter(charter_path)
    seed = load_seed_model(seed_model, agreed.terms.max_length)
    check_seed(agreed, seed)
    _done(add_owner(model, contribution, agreed, read_pool(pool_path, seed), seed, out))


def _done(artifact: Artifact) -> None:
    from collegium.unify.changed_folder import change_notes
    from collegium.unify.unified_folder import FACTS

    facts = json.loads((artifact.path / FACTS).read_bytes())
    text = f"{artifact.path}\nsha256 {artifact.sha256}\n{change_notes(facts)[-1]}"
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
