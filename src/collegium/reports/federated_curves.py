"""Figures of federated rounds: accuracy against the round for every method, and the use of the experts.

Colour never stands alone: methods also differ by the dashes of their line, and the legend lists them from the best to
the worst at the end. Experts have no names that mean the same with another seed, so that their use has a panel for each
seed.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from collegium.core.artifacts import write_file

Curve = Mapping[int, float]  # round → accuracy, as a fraction
Use = Mapping[int, Sequence[float]]  # round → the share of each expert
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "collegium",
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
# Wong 2011 (Nature Methods 8:441): told apart by the colour-blind; its yellow is too faint for lines.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))


def accuracy_figure(curves: Mapping[str, Sequence[Curve]], title: str) -> Figure:
    """Mean over seeds for each method, and a band of one standard deviation where there are several seeds.

    Args:
        curves: method → its curves, one a seed; rounds that not all of them have are left out.
    """
    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        last = {}
        for number, (method, by_seed) in enumerate(curves.items()):
            rounds = sorted(set.intersection(*(set(curve) for curve in by_seed)))
            values = 100 * np.array([[curve[one] for one in rounds] for curve in by_seed])  # [seeds, rounds]
            mean = values.mean(axis=0)
            colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
            (line,) = axes.plot(rounds, mean, color=colour, linestyle=dashes, linewidth=1.6, label=method)
            if len(values) > 1:
                spread = values.std(axis=0, ddof=1)
                axes.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.1, linewidth=0)
            last[method] = (mean[-1] if len(mean) else 0.0, line)
        best_first = sorted(last, key=lambda method: -last[method][0])
        figure.legend(
            [last[method][1] for method in best_first],
            [f"{method}  {last[method][0]:.1f}" for method in best_first],
            loc="outside right upper",
            title="method, in the last round",
            fontsize=9,
        )
        axes.set(xlabel="round", ylabel="accuracy of unseen clients, %", title=title)
        return figure


def use_figure(uses: Mapping[str, Mapping[int, Use]], title: str) -> Figure:
    """The shares of the experts over the rounds, stacked: a row of panels for each method, a column for each seed.

    Args:
        uses: method → seed → the use of its experts.
    """
    seeds = sorted({seed for by_seed in uses.values() for seed in by_seed})
    with matplotlib.style.context(["default", STYLE, {"axes.grid": False}]):
        figure = Figure(figsize=(1.6 + 2.4 * len(seeds), 1.0 + 1.7 * len(uses)), layout="constrained")
        panels = figure.subplots(len(uses), len(seeds), sharex=True, sharey=True, squeeze=False)
        for row, (method, by_seed) in zip(panels, uses.items(), strict=True):
            row[0].set_ylabel(f"{method}\nshare, %", fontsize=9)
            for axes, seed in zip(row, seeds, strict=True):
                if seed in by_seed:
                    rounds = sorted(by_seed[seed])
                    shares = 100 * np.array([by_seed[seed][one] for one in rounds]).T  # [experts, rounds]
                    colours = [COLOURS[expert % len(COLOURS)] for expert in range(len(shares))]
                    axes.stackplot(rounds, shares, colors=colours, alpha=0.75, edgecolor="white", linewidth=0.6)
                axes.set(ylim=(0, 100))
                axes.margins(x=0)
        for first, last, seed in zip(panels[0], panels[-1], seeds, strict=True):
            first.set_title(f"seed {seed}", fontsize=9)
            last.set_xlabel("round")
        figure.suptitle(title, fontsize=11)
        return figure


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write `path` as PNG and as SVG, the same bytes for the same figure; both paths.

    Args:
        path: without a suffix.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = []
    formats: list[tuple[str, Callable[[Figure], object], dict[str, Any]]] = [
        ("png", FigureCanvasAgg, {"dpi": 150, "metadata": {"Software": None}}),
        ("svg", FigureCanvasSVG, {"metadata": {"Date": None}}),
    ]
    with matplotlib.style.context(["default", STYLE]):
        for suffix, canvas, settings in formats:
            canvas(figure)
            content = io.BytesIO()
            figure.savefig(content, format=suffix, **settings)
            saved.append(path.with_name(f"{path.name}.{suffix}"))
            write_file(saved[-1], content.getvalue())
    return saved
