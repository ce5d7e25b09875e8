"""`merge`: fine-tunes that already exist become one Mixture-of-Experts folder, without loading any model."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from collegium.cli.options import Overrides, Quiet, Threads
from collegium.core.errors import InputError
from collegium.core.load_recipe import parse_settings
from collegium.core.recipe import Columns
from collegium.core.router_settings import RouterSettings

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")  # as owners are named


def merge(
    seed_model: Annotated[Path, typer.Argument(metavar="SEED_FOLDER", help="the model that all were fine-tuned from")],
    experts: Annotated[
        list[str], typer.Argument(metavar="NAME=EXPERT_FOLDER…", help="whole fine-tunes, or PEFT LoRA folders")
    ],
    to: Annotated[Path, typer.Option("--to", "--out", "-o", help="folder to write")],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, typer.Option(help="of the merged model; default: the seed's")
    ] = None,
    shared: Annotated[
        Literal["refuse", "average", "seed"],
        typer.Option(help="what to do with weights outside the feed-forward networks that were changed"),
    ] = "refuse",
    keep_lora: Annotated[
        bool, typer.Option("--keep-lora", help="LoRA folders stay factors beside one base: a much smaller model")
    ] = False,
    experts_per_token: Annotated[int, typer.Option(min=1, help="experts that each token runs through")] = 1,
    examples: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="texts of an expert's domain: the router is set from them"),
    ] = None,
    random_seed: Annotated[int, typer.Option(min=0, help="of the random router, where there are no examples")] = 0,
    overrides: Overrides = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Merge fine-tunes of one seed into a MoE folder; --set takes keys of the router (context=token)."""
    from collegium.data.examples import load_texts
    from collegium.unify.example_router import MOST_TEXTS
    from collegium.unify.merge_checkpoints import ROUTER, merge_checkpoints

    base = {**ROUTER.model_dump(exclude_unset=True), "experts_per_token": experts_per_token}
    router = parse_settings(base, RouterSettings, overrides, source="the router")
    texts = {
        name: load_texts(file, Columns(label=None), MOST_TEXTS, random_seed).texts
        for name, file in _pairs(examples or [], "--examples").items()
    }
    folders = {name: Path(folder) for name, folder in _pairs(experts, "The list of experts").items()}
    artifact = merge_checkpoints(seed_model, folders, to, router, dtype, shared, keep_lora, texts or None, random_seed)
    size = sum(entry["bytes"] for entry in artifact.files.values())
    Console().print(
        f"{artifact.path}: {len(folders)} experts, {size:,} bytes\nsha256 {artifact.sha256}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _pairs(values: list[str], what: str) -> dict[str, str]:
    """NAME=VALUE, each name once."""
    pairs: dict[str, str] = {}
    for value in values:
        name, separator, path = value.partition("=")
        if not separator or not path or not NAME.fullmatch(name):
            raise InputError(
                f"{what} has an entry that is not of the form NAME=PATH.",
                got=value,
                expected="a name of lower-case letters, digits, - and _, then = and a path",
            )
        if name in pairs:
            raise InputError(f"{what} has {name} twice.", got=f"{pairs[name]} and {path}", expected="one for each name")
        pairs[name] = path
    return pairs
