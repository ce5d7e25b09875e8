"""One self-contained HTML page of explained texts: every token under the name and in the colour of its expert.

Texts, tokens and names come from other people: the template is autoescaped and cleaned as the report's is, and the
page forbids scripts and loads by its own policy. Colour is never alone: each run of tokens carries its expert's name,
and the exact numbers stand in a table.
"""

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
from collegium.evaluation.explain import Explanation, Step, Stretch, written
from collegium.reports.page import cleaned
from collegium.reports.wording import percent

TEMPLATE = "explain.html.jinja"
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
    """The HTML of one or more texts."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=cleaned, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = percent
    template = environment.from_string((files("collegium.reports") / TEMPLATE).read_text(encoding="utf-8"))
    return template.render(title=title, texts=[_text(one) for one in explanations])


def _text(explanation: Explanation) -> dict[str, Any]:
    return {
        "text": explanation.text,
        "unread": explanation.unread,
        "shares": [(_named(explanation, expert), share) for expert, share in explanation.shares().items()],
        "stretches": [
            {"name": stretch.name, "routed": stretch.routed, "runs": _runs(explanation, stretch)}
            for stretch in explanation.stretches
        ],
        "columns": [stretch.name for stretch in explanation.stretches],
        "rows": [
            (written(tokens), [_cell(explanation, step) for step in steps]) for tokens, steps in explanation.rows()
        ],
    }


def _named(explanation: Explanation, expert: int) -> dict[str, str]:
    """An expert's name, and the class that colours it."""
    last = len(explanation.experts) - 1
    return {"name": explanation.experts[expert], "colour": "seed" if expert == last else f"e{expert % COLOURS}"}


def _runs(explanation: Explanation, stretch: Stretch) -> list[dict[str, Any]]:
    """Neighbouring tokens of the same expert, together."""
    tokens = zip(explanation.tokens, stretch.steps, strict=True)
    return [
        {**_named(explanation, expert), "tokens": [(token, step.probability) for token, step in run]}
        for expert, run in groupby(tokens, key=lambda one: one[1].expert)
    ]


def _cell(explanation: Explanation, step: Step) -> dict[str, Any]:
    runner_up = None
    if step.runner_up is not None:
        runner_up = (_named(explanation, step.runner_up[0]), step.runner_up[1])
    weights = [(_named(explanation, expert), f"{weight:.2f}") for expert, weight in step.weights.items()]
    return {"weights": weights, "probability": step.probability, "runner_up": runner_up}
