"""`pool`, `charter` and `unify`: what the coordinator does, without any private data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from collegium.cli.options import Out, Overrides, PoolPath, Quiet, SeedName, Threads
from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import Recipe


def pool(
    recipe: Annotated[Path, typer.Argument(help="the coordinator's recipe (YAML)")],
    out: Out = Path("pool"),
    overrides: Overrides = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Build the public pool: texts, labels, hashes and the seed's embeddings."""
    from collegium.models.seed_model import load_seed_model
    from collegium.selection.pool import build_pool

    settings = load_recipe(recipe, Recipe, overrides)
    seed = load_seed_model(settings.seed_model, settings.max_length)
    built = build_pool(out or Path("pool"), settings.pool, seed, settings.random_seed)
    removed = built.artifact.settings["duplicates_removed"]
    _done(built.artifact.path, f"{len(built)} items, {removed} exact duplicates removed", built.artifact.sha256)


def charter(
    recipe: Annotated[Path, typer.Argument(help="the coordinator's recipe (YAML)")],
    pool_path: PoolPath = Path("pool"),
    out: Out = Path("charter"),
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Write the charter: what everybody agrees on before anything is trained."""
    from collegium.flow.simulate import make_charter
    from collegium.models.seed_model import load_seed_model
    from collegium.selection.pool import read_pool

    settings = load_recipe(recipe, Recipe, overrides)
    seed = load_seed_model(settings.seed_model, settings.max_length)
    written = make_charter(out or Path("charter"), settings, seed, read_pool(pool_path, seed))
    _done(written.artifact.path, f"{len(written.owners)} owners: {', '.join(written.owners)}", written.sha256)


def unify(
    charter_path: Annotated[Path, typer.Argument(metavar="CHARTER", help="the charter")],
    contributions: Annotated[list[Path], typer.Argument(help="one contribution of each owner")],
    pool_path: PoolPath,
    seed_model: SeedName,
    out: Out = Path("model"),
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Check contributions and unify them into one model folder."""
    from collegium.models.seed_model import load_seed_model
    from collegium.owner.charter import check_seed, read_charter
    from collegium.selection.pool import read_pool
    from collegium.unify.unify import unify as unify_contributions

    agreed = read_charter(charter_path)
    seed = load_seed_model(seed_model, agreed.terms.max_length)
    check_seed(agreed, seed)
    opened = read_pool(pool_path, seed)
    artifact = unify_contributions(agreed, contributions, opened, seed, out or Path("model"))
    _done(artifact.path, f"{len(contributions)} experts", artifact.sha256)


def _done(path: Path, what: str, sha256: str) -> None:
    Console().print(f"{path}: {what}\nsha256 {sha256}", markup=False, highlight=False, soft_wrap=True)
