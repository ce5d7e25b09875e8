"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from collegium.core.errors import InputError
from collegium.core.progress import set_quiet
from collegium.core.recipe import OwnerRecipe

Overrides = Annotated[list[str] | None, typer.Option("--set", help="override a key of the recipe: router.init=raw")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="no progress", callback=lambda value: set_quiet(value) or value)
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="folder to write")]
PoolPath = Annotated[Path, typer.Option("--pool", help="the public pool (`collegium pool`)")]
SeedName = Annotated[str, typer.Option("--seed-model", help="catalogue name, folder, or hub name")]


def set_threads(threads: int | None) -> int | None:
    """Use this many CPU threads; results are repeatable for the same number."""
    if threads is not None:
        if threads < 1:
            raise InputError("--threads is wrong.", got=threads, expected="1 or more")
        torch.set_num_threads(threads)
    return threads


Threads = Annotated[
    int | None,
    typer.Option("--threads", help="CPU threads (hashes repeat for the same number)", callback=set_threads),
]


Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        help="most that select from shards at a time; changes the time alone",
    ),
]
Store = Annotated[
    Path | None, typer.Option("--store", help="the owner's memory of releases; default: .collegium beside the data")
]


def store_beside(settings: OwnerRecipe, recipe: Path) -> Path:
    """`.collegium` in the folder of the private data; beside the recipe where the data are no local path.

    The same for every charter and name: the memory belongs to the data.
    """
    data = settings.data if isinstance(settings.data, str) else settings.data.get("train", "")
    path = Path(data)
    if data and path.exists():
        return (path if path.is_dir() else path.parent) / ".collegium"
    return recipe.parent / ".collegium"
