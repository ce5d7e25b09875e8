"""`contribute`: the owner's one command."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from collegium.cli.ledger import print_ledger
from collegium.cli.options import Out, Overrides, PoolPath, Processes, Quiet, SeedName, Store, Threads, store_beside
from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import OwnerRecipe
from collegium.owner.contribute import Plan


def contribute(
    charter: Annotated[Path, typer.Argument(help="the charter that everybody agreed on")],
    recipe: Annotated[Path, typer.Argument(help="the owner's recipe (YAML): name, data, columns")],
    pool: PoolPath,
    seed_model: SeedName,
    out: Out = None,
    store: Store = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would leave")] = False,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="go on though pool records are like private ones")
    ] = False,
    processes: Processes = None,
    overrides: Overrides = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Select proxies, train the expert and pack the contribution: the only thing that leaves."""
    from collegium.models.seed_model import load_seed_model
    from collegium.owner import contribute as owner
    from collegium.owner.charter import check_seed, read_charter
    from collegium.privacy.release_store import ReleaseStore
    from collegium.selection.pool import read_pool

    settings = load_recipe(recipe, OwnerRecipe, overrides)
    agreed = read_charter(charter)
    seed = load_seed_model(seed_model, agreed.terms.max_length)
    check_seed(agreed, seed)
    console = Console()
    if dry_run:
        _print_plan(owner.plan_contribution(agreed, settings, seed, allow_overlap), console)
        return
    opened = read_pool(pool, seed)
    memory = ReleaseStore(store or store_beside(settings, recipe))
    destination = out or Path(f"contribution-{settings.name}")
    artifact = owner.contribute(agreed, settings, opened, seed, destination, memory, allow_overlap, processes)
    size = sum(entry["bytes"] for entry in artifact.files.values())
    console.print(
        f"{artifact.path}: {size:,} bytes; send this folder to the coordinator, nothing else\n"
        f"sha256 {artifact.sha256}\nmemory of releases, which stays here: {memory.folder}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _print_plan(plan: Plan, console: Console) -> None:
    files = Table("file", "bytes, at most", title="What would leave", title_justify="left")
    for name, size in plan.files.items():
        files.add_row(name, f"{size:,}")
    console.print(files)
    print_ledger([entry.model_dump() for entry in plan.ledger], console)
    console.print(
        "\nNothing was written. A share of the proxies is held out of the routing vectors: the sensitivity will "
        "be a little larger than shown.",
        markup=False,
    )
