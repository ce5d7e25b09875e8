"""An explanation on the terminal: a text in its experts' colours, a picture as a grid of their signs, then numbers.

Colour is never alone: a run of tokens carries its expert's name, a patch its expert's sign.
"""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from collegium.evaluation.explain import Explanation, Grid, Step, Stretch
from collegium.reports.wording import clean, percent

COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue", "bright_yellow", "bright_green")
CELL = 30  # columns of the terminal that one layer takes
PIECE = 18  # and the tokens


def print_explanation(explanation: Explanation, console: Console) -> None:
    """The item in its experts' colours, once for each stretch of layers, then the numbers."""
    shares = [f"{_sign(explanation, e)} {percent(share)} %" for e, share in explanation.shares().items()]
    if explanation.grid is not None:
        console.print(Text(f"\n{clean(explanation.text)}", style="bold"))
        _print_grids(explanation, explanation.grid, console)
        console.print(Text(f"\nrouted patches: {', '.join(shares)}"))
        console.print(_summary(explanation))
        return
    for stretch in explanation.stretches:
        note = "" if stretch.routed else ", before the decision"
        console.print(Text(f"\n{stretch.name}{note}", style="bold"))
        console.print(_coloured(explanation, stretch))
    if explanation.warmup:
        console.print(
            f"\nWarm-up: the first {explanation.warmup} tokens take the seed whatever they are.", markup=False
        )
    if explanation.unread:
        console.print(f"\nThe last {explanation.unread} characters are beyond the model's longest input.", markup=False)
    console.print(Text(f"\nrouted tokens: {', '.join(shares)}; below: expert × weight, probability (runner-up)"))
    routed = [index for index, stretch in enumerate(explanation.stretches) if stretch.routed]
    width = max(1, (console.width - PIECE) // CELL)
    for start in range(0, len(routed), width):
        some = routed[start : start + width]
        table = Table("tokens", *(explanation.stretches[index].name for index in some))
        for tokens, steps in explanation.rows():
            table.add_row(Text(clean(explanation.named(tokens))), *(_cell(explanation, steps[index]) for index in some))
        console.print(table)


def _print_grids(explanation: Explanation, grid: Grid, console: Console) -> None:
    """As many layers beside each other as there is room for."""
    mark = max(len(explanation.mark(expert)) for expert in range(len(explanation.experts)))
    gap = " " if grid.columns * (mark + 1) <= console.width else ""
    width = max(24, grid.columns * (mark + len(gap))) + 3
    per_line = max(1, console.width // width)
    for start in range(0, len(explanation.stretches), per_line):
        table = Table.grid(padding=(1, 3, 0, 0))
        table.add_row(
            *(_grid(explanation, one, grid, mark, gap) for one in explanation.stretches[start : start + per_line])
        )
        console.print(table)


def _grid(explanation: Explanation, stretch: Stretch, grid: Grid, width: int, gap: str) -> Text:
    """Its name, [CLS], and a row of signs for each row of patches."""
    note = "" if stretch.routed else ", before the decision"
    text = Text(no_wrap=True).append(f"{stretch.name}{note}\n", style="bold")
    before = len(explanation.tokens) - grid.rows * grid.columns
    for token, step in zip(explanation.tokens[:before], stretch.steps, strict=False):
        text.append(f"{token.piece} ", style="dim")
        text.append(_sign(explanation, step.expert), style=_colour(explanation, step.expert))
    for index, step in enumerate(stretch.steps[before:]):
        text.append("\n" if index % grid.columns == 0 else gap)
        text.append(explanation.mark(step.expert).ljust(width), style=_colour(explanation, step.expert))
    return text


def _summary(explanation: Explanation) -> Table:
    """Of each stretch: the experts' tokens, with the means of weight and probability."""
    table = Table("layers", "expert", "patches and [CLS]", "mean weight", "mean probability")
    for stretch in explanation.stretches:
        for index, expert in enumerate(_used(stretch)):
            weights = [step.weights[expert] for step in stretch.steps if expert in step.weights]
            chosen = [
                step.probability for step in stretch.steps if step.expert == expert and step.probability is not None
            ]
            probability = f"{percent(sum(chosen) / len(chosen))} %" if chosen else ""
            table.add_row(
                Text(stretch.name if index == 0 else ""),
                Text(_sign(explanation, expert), _colour(explanation, expert)),
                str(len(weights)),
                f"{sum(weights) / len(weights):.2f}",
                probability,
            )
    return table


def _used(stretch: Stretch) -> Sequence[int]:
    return sorted({expert for step in stretch.steps for expert in step.weights})


def _sign(explanation: Explanation, expert: int) -> str:
    """Its name, and in a picture before it what stands for it in the grid."""
    name = clean(explanation.experts[expert])
    return name if explanation.grid is None else f"{explanation.mark(expert)} {name}"


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
    return "bright_black" if expert == explanation.seed else COLOURS[expert % len(COLOURS)]


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
