"""`explain`: which expert each token of a text uses, on the terminal and as a page."""

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from collegium.cli.look import read_items
from collegium.cli.options import Quiet
from collegium.core.errors import DataError, InputError
from collegium.core.recipe import Columns
from collegium.data.read_table import READERS
from collegium.evaluation.explain import Explanation, Step, Stretch, written
from collegium.reports.wording import clean, percent

MOST_TEXTS = 50  # explained at once: a page of more is read by nobody
COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue", "bright_yellow", "bright_green")
CELL = 30  # columns of the terminal that one layer takes
PIECE = 18  # and the tokens


def explain(
    model: Annotated[Path, typer.Argument(help="a unified model")],
    source: Annotated[str, typer.Argument(help="the text itself; or a file as for predict, or - for stdin")],
    html: Annotated[Path | None, typer.Option("--html", help="write a self-contained page here too")] = None,
    text: Annotated[str, typer.Option(help="column that holds the text, where a table is given")] = "text",
    quiet: Quiet = False,
) -> None:
    """Which expert each token uses at each layer, with what weight, and which came second."""
    from collegium.evaluation.explain import explain_text
    from collegium.reports.explain_page import write_explanations
    from collegium.unify.unified_folder import read_unified

    unified = read_unified(model)
    if unified.encoder.modality != "text":
        raise InputError(f"{model} reads pictures.", expected="a model that reads texts: only these are explained yet")
    items = read_items(source, Columns(text=text, label=None))[0] if _is_file(source) else [source]
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) > MOST_TEXTS:
        raise DataError(
            f"{source} holds too many texts to look at.",
            got=len(texts),
            expected=f"at most {MOST_TEXTS}",
            do="give the texts that you wonder about; `collegium predict` answers all, with the experts used",
        )
    if not texts or not texts[0].strip():
        raise DataError("There is no text to explain.", expected="a text, or a file of texts")
    console = Console(highlight=False)
    explanations = [explain_text(unified.encoder, one) for one in texts]
    page = None if html is None else write_explanations(explanations, unified.facts["project"], html)
    for one in explanations:
        print_explanation(one, console)
    if page is not None:
        console.print(f"\nwrote {page}", markup=False, soft_wrap=True)


def print_explanation(explanation: Explanation, console: Console) -> None:
    """The text in its experts' colours, once for each stretch of layers, then the numbers."""
    for stretch in explanation.stretches:
        note = "" if stretch.routed else ", before the decision"
        console.print(Text(f"\n{stretch.name}{note}", style="bold"))
        console.print(_coloured(explanation, stretch))
    if explanation.unread:
        console.print(f"\nThe last {explanation.unread} characters are beyond the model's longest input.", markup=False)
    shares = [f"{clean(explanation.experts[e])} {percent(share)} %" for e, share in explanation.shares().items()]
    console.print(Text(f"\nrouted tokens: {', '.join(shares)}; below: expert × weight, probability (runner-up)"))
    routed = [index for index, stretch in enumerate(explanation.stretches) if stretch.routed]
    width = max(1, (console.width - PIECE) // CELL)
    for start in range(0, len(routed), width):
        some = routed[start : start + width]
        table = Table("tokens", *(explanation.stretches[index].name for index in some))
        for tokens, steps in explanation.rows():
            table.add_row(Text(clean(written(tokens))), *(_cell(explanation, steps[index]) for index in some))
        console.print(table)


def _coloured(explanation: Explanation, stretch: Stretch) -> Text:
    """Runs of tokens of the same expert, each with its name: `‹cow and hen› farm`."""
    line = Text()
    for expert, run in groupby(zip(explanation.tokens, stretch.steps, strict=True), key=lambda one: one[1].expert):
        line.append(" ‹" if line else "‹", style="dim")
        for index, (token, _) in enumerate(run):
            line.append("" if index == 0 or token.joined else " ")
            line.append(clean(token.piece), style=f"dim {_colour(explanation, expert)}" if token.special else "")
            line.stylize(_colour(explanation, expert), len(line) - len(clean(token.piece)))
        line.append("›", style="dim").append(f" {clean(explanation.experts[expert])}", style="italic")
    return line


def _colour(explanation: Explanation, expert: int) -> str:
    return "bright_black" if expert == len(explanation.experts) - 1 else COLOURS[expert % len(COLOURS)]


def _cell(explanation: Explanation, step: Step) -> Text:
    """`farm × 1.00 83.1 % (port 12.0 %)`: weight, probability, and the runner-up's."""
    cell = Text()
    for expert, weight in step.weights.items():
        cell.append(" + " if cell else "").append(clean(explanation.experts[expert]), _colour(explanation, expert))
        cell.append(f" × {weight:.2f}")
    if step.probability is not None:
        second = ""
        if step.runner_up is not None:
            second = f" ({clean(explanation.experts[step.runner_up[0]])} {percent(step.runner_up[1])} %)"
        cell.append(f" {percent(step.probability)} %{second}", "dim")
    return cell


def _is_file(source: str) -> bool:
    """A file or folder that is there, stdin, or what looks like the name of a data file."""
    try:
        there = bool(source.strip()) and Path(source).exists()
    except OSError:  # a text too long for a name
        there = False
    named = Path(source).suffix.lower() in (".txt", *READERS) and not any(character.isspace() for character in source)
    return there or source == "-" or named
