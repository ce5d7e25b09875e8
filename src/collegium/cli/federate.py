"""`federate`: rounds among simulated clients."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from collegium.cli.options import Out, Overrides, Quiet, Threads


def federate(
    recipe: Annotated[Path, typer.Argument(help="recipe of a federation (YAML)")],
    out: Out = None,
    engine: Annotated[
        Literal["in-process", "simulation"],
        typer.Option("--engine", help="in-process = clients in turn; simulation = Flower's, a process for each core"),
    ] = "in-process",
    overrides: Overrides = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Federated rounds on one machine with made-up clients; killed runs go on after their last round."""
    from collegium.cli.ledger import print_ledger
    from collegium.core.load_recipe import load_recipe
    from collegium.federated.recipe import FederatedRecipe
    from collegium.flow.federate import federate as run

    path = run(load_recipe(recipe, FederatedRecipe, overrides), out or Path("runs") / recipe.stem, engine)
    found = json.loads(path.read_bytes())
    console = Console()
    personal = found["settings"]["evaluation"]["protocol"] == "personal"
    clients = found["clients"]["training" if personal else "judging"]
    judged = "by examples of their own" if personal else "that never trained"
    spread = f"{min(found['by_client']):.3f} to {max(found['by_client']):.3f}"
    console.print(
        f"{found['algorithm']}: accuracy {found['accuracy']:.3f} of {clients} clients {judged} ({spread}), "
        f"mean of rounds {', '.join(map(str, found['averaged_rounds']))}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    shares = ", ".join(f"{share:.2f}" for share in found["utilisation"])
    console.print(f"use of the experts: {shares}", markup=False, highlight=False)
    print_ledger(found["ledger"], console, "What would leave a client")
    console.print(f"\nresult: {path}", markup=False, highlight=False, soft_wrap=True)
