"""`explain`: which expert each token of a text or patch of a picture uses, on the terminal and as a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from collegium.cli.explain_print import print_explanation
from collegium.cli.look import read_items
from collegium.cli.options import Quiet
from collegium.core.errors import DataError
from collegium.core.recipe import Columns
from collegium.data.images import SUFFIXES as PICTURES
from collegium.data.images import Picture
from collegium.data.items import Item
from collegium.data.read_table import READERS

MOST = 50  # explained at once: a page of more is read by nobody


def explain(
    model: Annotated[Path, typer.Argument(help="a unified model")],
    source: Annotated[
        str, typer.Argument(help="the text itself; or a file as for predict, - for stdin; a picture, a folder of them")
    ],
    html: Annotated[Path | None, typer.Option("--html", help="write a self-contained page here too")] = None,
    text: Annotated[str, typer.Option(help="column that holds the text, where a table is given")] = "text",
    image: Annotated[str | None, typer.Option(help="column that holds the picture, for models of pictures")] = None,
    quiet: Quiet = False,
) -> None:
    """Which expert each token or patch uses at each layer, with what weight, and which came second."""
    from collegium.evaluation.explain import explain_picture, explain_text
    from collegium.models.encoder import check_modality
    from collegium.reports.explain_page import write_explanations
    from collegium.unify.unified_folder import read_unified

    unified = read_unified(model)
    items, places = _items(source, Columns(text=text, image=image, label=None))
    check_modality(unified.encoder, items, "question")
    explanations = [
        explain_picture(unified.encoder, item, _name(place))
        if isinstance(item, Picture)
        else explain_text(unified.encoder, item)
        for item, place in zip(items, places, strict=True)
    ]
    page = None if html is None else write_explanations(explanations, unified.facts["project"], html)
    console = Console(highlight=False)
    for one in explanations:
        print_explanation(one, console)
    if page is not None:
        console.print(f"\nwrote {page}", markup=False, soft_wrap=True)


def _items(source: str, columns: Columns) -> tuple[Sequence[Item], Sequence[int | str]]:
    """What is to be explained, and the place of each.

    Raises:
        DataError: it cannot be read, holds nothing, or too much.
    """
    items, places = read_items(source, columns) if _is_file(source) else ([source], [1])
    if len(items) > MOST:
        raise DataError(
            f"{source} holds too much to look at.",
            got=len(items),
            expected=f"at most {MOST}",
            do="give what you wonder about; `collegium predict` answers all, with the experts used",
        )
    if not items or (isinstance(items[0], str) and not items[0].strip()):
        raise DataError("There is no text to explain.", expected="a text, or a file of texts")
    return items, places


def _name(place: int | str) -> str:
    """Of a picture: its file, or its row of a table."""
    return place if isinstance(place, str) else f"picture {place}"


def _is_file(source: str) -> bool:
    """A file or folder that is there, stdin, or what looks like the name of a data file."""
    try:
        there = bool(source.strip()) and Path(source).exists()
    except OSError:  # a text too long for a name
        there = False
    named = Path(source).suffix.lower() in (".txt", *READERS, *PICTURES) and not any(
        character.isspace() for character in source
    )
    return there or source == "-" or named
