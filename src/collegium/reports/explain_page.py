"""One self-contained HTML page of explained texts and pictures: tokens and patches in the colour of their expert.

Texts, tokens and names come from other people: the template is autoescaped and cleaned as the report's is, and the
page forbids scripts and loads by its own policy. Colour is never alone: each run of tokens carries its expert's name,
each run of patches its expert's sign, and the exact numbers stand in a table. A picture is in the page once, as data.
"""

import base64
import errno
import os
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from collegium.core.artifacts import write_file
from collegium.core.errors import RunError
from collegium.evaluation.explain import Explanation, Grid, Step, Stretch
from collegium.reports.page import cleaned
from collegium.reports.wording import percent

TEMPLATE = "explain.html.jinja"
SHARP = 64  # pixels of a picture's side up to which they are shown as squares, not smoothed
COLOURS = 8  # classes of the page's style; a ninth owner gets the first one's colour again, under its own name


def write_explanations(explanations: Sequence[Explanation], title: str, path: Path) -> Path:
    """Write the page and return its path.

    Args:
        title: what was explained: the model's name.

    Raises:
        RunError: the page could not be written; a page that was there is untouched.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, render_explanations(explanations, title).encode())
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise RunError(f"{path} could not be written: {reason}.", do="name another file, or free some space") from error
    return path


def render_explanations(explanations: Sequence[Explanation], title: str) -> str:
    """The HTML of one or more texts or pictures."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=cleaned, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = percent
    template = environment.from_string((files("collegium.reports") / TEMPLATE).read_text(encoding="utf-8"))
    pictures = [one.grid is not None for one in explanations]
    kinds = {"any_text": not all(pictures), "any_picture": any(pictures)}
    return template.render(title=title, items=[_item(one) for one in explanations], **kinds)


def _item(explanation: Explanation) -> dict[str, Any]:
    grid = explanation.grid
    return {
        "text": explanation.text,
        "unread": explanation.unread,
        "warmup": explanation.warmup,
        "picture": None if grid is None else _picture(grid),
        "shares": [(_named(explanation, expert), share) for expert, share in explanation.shares().items()],
        "stretches": [
            {
                "name": stretch.name,
                "routed": stretch.routed,
                "runs": _runs(explanation, stretch) if grid is None else _bars(explanation, stretch, grid),
                "first": _named(explanation, stretch.steps[0].expert),
            }
            for stretch in explanation.stretches
        ],
        "columns": [stretch.name for stretch in explanation.stretches],
        "rows": [
            (explanation.named(tokens), [_cell(explanation, step) for step in steps])
            for tokens, steps in explanation.rows()
        ],
    }


def _named(explanation: Explanation, expert: int) -> dict[str, str]:
    """An expert's name, the class that colours it, and its sign in a picture."""
    colour = "seed" if expert == explanation.seed else f"e{expert % COLOURS}"
    return {"name": explanation.experts[expert], "colour": colour, "mark": explanation.mark(expert)}


def _picture(grid: Grid) -> dict[str, Any]:
    """What the model sees, as data, and its shape counted in patches."""
    sharp = max(grid.seen.pixels.shape) <= SHARP
    data = base64.b64encode(grid.seen.png).decode()
    return {"data": f"data:image/png;base64,{data}", "rows": grid.rows, "columns": grid.columns, "sharp": sharp}


def _runs(explanation: Explanation, stretch: Stretch) -> list[dict[str, Any]]:
    """Neighbouring tokens of the same expert, together."""
    tokens = zip(explanation.tokens, stretch.steps, strict=True)
    return [
        {**_named(explanation, expert), "tokens": [(token, step.probability) for token, step in run]}
        for expert, run in groupby(tokens, key=lambda one: one[1].expert)
    ]


def _bars(explanation: Explanation, stretch: Stretch, grid: Grid) -> list[dict[str, Any]]:
    """Neighbouring patches of the same expert in one row of the picture, together."""
    patches = stretch.steps[len(stretch.steps) - grid.rows * grid.columns :]
    bars = []
    for row in range(grid.rows):
        column = 0
        for expert, run in groupby(step.expert for step in patches[row * grid.columns : (row + 1) * grid.columns]):
            width = len(list(run))
            bars.append({**_named(explanation, expert), "row": row, "column": column, "width": width})
            column += width
    return bars


def _cell(explanation: Explanation, step: Step) -> dict[str, Any]:
    runner_up = None
    if step.runner_up is not None:
        runner_up = (_named(explanation, step.runner_up[0]), step.runner_up[1])
    weights = [(_named(explanation, expert), f"{weight:.2f}") for expert, weight in step.weights.items()]
    return {"weights": weights, "probability": step.probability, "runner_up": runner_up}
