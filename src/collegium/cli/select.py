"""`select`: an owner's first stage alone, or one shard of it. Nothing leaves; `contribute` goes on from its result."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from collegium.cli.options import Overrides, PoolPath, Processes, Quiet, SeedName, Store, Threads, store_beside
from collegium.core.errors import InputError
from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import OwnerRecipe
from collegium.data.items import describe
from collegium.owner.charter import Charter
from collegium.reports.wording import clean, shorten

EXAMPLES = 5  # first picks that are shown


def select(
    charter: Annotated[Path, typer.Argument(help="the charter that everybody agreed on")],
    recipe: Annotated[Path, typer.Argument(help="the owner's recipe (YAML): name, data, columns")],
    pool: PoolPath,
    seed_model: SeedName,
    store: Store = None,
    shard: Annotated[
        str | None, typer.Option("--shard", help="only shard I of the charter's N, as I/N; without it all are merged")
    ] = None,
    processes: Processes = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="go on though pool records are like private ones")
    ] = False,
    overrides: Overrides = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Select the owner's proxies and keep them for `contribute`; nothing leaves."""
    from collegium.models.seed_model import load_seed_model
    from collegium.owner.charter import check_pool, check_seed, read_charter
    from collegium.owner.choose_proxies import choose_proxies, choose_shard
    from collegium.owner.private_data import load_private
    from collegium.privacy.release_store import ReleaseStore
    from collegium.selection.pool import is_held_out, read_pool, verify_pool

    settings = load_recipe(recipe, OwnerRecipe, overrides)
    agreed = read_charter(charter)
    number = None if shard is None else _shard_number(shard, agreed)
    seed = load_seed_model(seed_model, agreed.terms.max_length)
    check_seed(agreed, seed)
    opened = read_pool(pool, seed)
    check_pool(agreed, opened)
    verify_pool(opened, seed)
    private = load_private(agreed, settings)
    memory = ReleaseStore(store or store_beside(settings, recipe))
    console = Console(highlight=False)

    def line(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    if number is not None:
        kept = choose_shard(agreed, settings, opened, seed, private, memory, number, allow_overlap)
        line(f"{kept}: shard {shard}, which stays here; `collegium select` without --shard merges them")
        return
    chosen = choose_proxies(agreed, settings, opened, seed, private, memory, allow_overlap, processes)
    hashes = opened.hashes
    held_out = sum(is_held_out(hashes[row], agreed.terms.held_out_one_in) for row in chosen.rows)
    line(f"{len(chosen.rows)} proxies of {len(opened):,} pool items, by {agreed.terms.selection.method}")
    if chosen.shortfall:
        line(chosen.shortfall)
    line(f"log det {chosen.log_det:.2f}; {held_out} held out of the training by the charter's rule")
    line("the first of them:")
    for item in opened.texts(chosen.rows[:EXAMPLES]):
        line(f"  {shorten(clean(item if isinstance(item, str) else describe(item)), 100)}")
    line(f"kept for `collegium contribute` in {memory.folder}, which stays here")


def _shard_number(shard: str, charter: Charter) -> int:
    """The shard's place, counted from 0."""
    expected = charter.terms.selection.shards
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", shard)
    if found is None or int(found[2]) != expected:
        raise InputError(
            "--shard is wrong.",
            got=shard,
            expected=f"I/{expected}, since the charter says selection.shards: {expected}"
            if expected > 1
            else "no --shard: the charter says selection.shards: 1",
        )
    return int(found[1]) - 1
