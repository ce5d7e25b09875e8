"""Figures as inline SVG: accuracy by domain and method with 95 % intervals, and the shares of the router.

Matplotlib draws, through its objects and never through pyplot. Colour never stands alone: methods also
differ by marker and have their name beside them, and shares are written in their cell. Small panels instead
of one wide figure: they keep their text size on a phone and flow beside each other on a desk.
"""

import math
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from collegium.reports.inline_svg import HEAT, INK, ON_HEAT, RC, SINGLE, SOUP, UNIFIED, inline_svg
from collegium.reports.reading import RunSummary
from collegium.reports.wording import interval, method_name, percent, shorten

EXPERTS = "single experts"
_STYLES = {  # method: marker, colour, filled
    "seed": ("s", SINGLE, False),
    EXPERTS: ("D", SINGLE, False),
    "soup": ("s", SOUP, True),
    "unified": ("o", UNIFIED, True),
    "oracle": ("D", INK, False),
}
_OTHER_STYLE = ("^", SINGLE, True)
_PIXELS_PER_INCH = 72  # the unit of the SVG that matplotlib writes
_DARK_ENOUGH = 0.7  # share of the heat colour from which light text reads better on it


@dataclass(frozen=True)
class Panel:
    """One figure: a title (other people's text, not yet cleaned) and an SVG element that holds no title."""

    title: str
    svg: str


def accuracy_panels(summary: RunSummary, labels: str = "union") -> list[Panel]:
    """One dot plot for each domain on one common axis; a lane is a method, the single experts share one.

    Without intervals only the dots are drawn.
    """
    methods = list(summary.accuracy)
    lows = [low for domain in summary.domains for low, _, _ in _points(summary, labels, domain, methods)]
    start = min(0.9, math.floor(10 * min(lows, default=0.0)) / 10)
    if not lows:
        return []
    return [
        Panel(domain, _accuracy_panel(summary, labels, domain, start, f"accuracy-{labels}-{number}"))
        for number, domain in enumerate(summary.domains)
    ]


def routing_panels(summary: RunSummary) -> list[Panel]:
    """One heat map for each layer with a router: rows are domains, columns experts, cells shares in %."""
    routing = summary.routing
    if routing is None or not routing.experts:
        return []
    panels = []
    for number, (layer, shares) in enumerate(routing.by_layer.items()):
        rows = {domain: row for domain, row in shares.items() if len(row) == len(routing.experts)}
        if rows:
            panels.append(Panel(f"Layer {layer}", _heat_map(routing.experts, rows, layer, f"routing-{number}")))
    return panels


def _lanes(summary: RunSummary, labels: str) -> dict[str, list[str]]:
    """Lane name -> the methods in it, in the order of the summary."""
    lanes: dict[str, list[str]] = {}
    for method in summary.accuracy:
        if summary.by_domain(method, labels):
            lanes.setdefault(EXPERTS if method.startswith("expert:") else method, []).append(method)
    return lanes


def _points(summary: RunSummary, labels: str, domain: str, methods: list[str]) -> list[tuple[float, float, float]]:
    """Low end, accuracy and high end for each of the methods that has an accuracy."""
    points = []
    for method in methods:
        value = summary.by_domain(method, labels).get(domain)
        if value is not None:
            found = interval(summary, method, labels, domain)
            points.append((found.low, value, found.high) if found else (value, value, value))
    return points


def _accuracy_panel(summary: RunSummary, labels: str, domain: str, start: float, prefix: str) -> str:
    # The longest name (task-arithmetic) takes 96 pixels; a marker at the start of the axis reaches 5 to its left.
    width, left, right, top, bottom, lane_height = 320, 106, 46, 6, 26, 22
    lanes = _lanes(summary, labels)
    height = top + bottom + lane_height * len(lanes)
    told = []
    with matplotlib.style.context(["default", RC]):
        figure = Figure(figsize=(width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH))
        axes = figure.add_axes(
            (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
        )
        axes.set_axis_off()
        axes.set_xlim(start, 1)
        axes.set_ylim(len(lanes) - 0.5, -0.5)
        _draw_scale(axes, start, len(lanes) - 0.5)
        for lane, (name, methods) in enumerate(lanes.items()):
            points = _points(summary, labels, domain, methods)
            beside: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline"}
            beside["fontweight"] = "bold" if name == "unified" else "normal"
            shown = shorten(method_name(name), 15)
            axes.annotate(shown, (start, lane), (2 - left, 0), ha="left", **beside)
            _draw_points(axes, lane, points, _STYLES.get(name, _OTHER_STYLE))
            if points:
                best = percent(max(value for _, value, _ in points))
                axes.annotate(best, (1, lane), (right - 2, 0), ha="right", **beside)
                told.append(f"{shorten(method_name(name), 64)} {best} %")
        return inline_svg(figure, prefix, f"Accuracy on {shorten(domain, 64)}: " + ", ".join(told))


def _draw_scale(axes: Axes, start: float, bottom: float) -> None:
    """Faint vertical lines with their values below, every 10 or 20 points down from 100 %."""
    step = 0.1 if start >= 0.5 else 0.2
    for number in range(int((1 - start) / step + 1e-6) + 1):
        tick = 1 - step * number
        axes.plot([tick, tick], [-0.5, bottom], color=INK, alpha=0.14, linewidth=1, clip_on=False)
        value = f"{100 * tick:.0f}" + (" %" if number == 0 else "")
        below: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": "center",
            "va": "top",
            "fontsize": 11,
            "alpha": 0.75,
        }
        axes.annotate(value, (tick, bottom), (0, -6), **below)


def _draw_points(axes: Axes, lane: int, points: list[tuple[float, float, float]], style: tuple[str, str, bool]) -> None:
    """The intervals as lines, the accuracies as markers on them."""
    marker, colour, filled = style
    line = {"linewidth": 2, "alpha": 0.45, "solid_capstyle": "round", "clip_on": False}
    dot = {"markersize": 7.5 if filled else 6.5, "markeredgewidth": 1.6, "clip_on": False}
    face = colour if filled else "none"
    for low, value, high in points:
        axes.plot([low, high], [lane, lane], color=colour, **line)
        axes.plot([value], [lane], marker=marker, color=colour, markerfacecolor=face, **dot)


def _heat_map(experts: list[str], rows: dict[str, list[float]], layer: str, prefix: str) -> str:
    left, cell_height, longest = 92.0, 30.0, 12
    names = [shorten(expert, longest) for expert in experts]
    cell_width = max(44.0, min(76.0, (320 - left) / len(experts)))
    turned = max(len(name) for name in names) * 6 > cell_width
    top = 24.0 + (3.6 * max(len(name) for name in names) if turned else 0)
    tail = 4.5 * len(names[-1]) if turned else 0  # the last turned name reaches beyond its column
    width, height = left + cell_width * len(experts) + tail + 2, top + cell_height * len(rows) + 2
    told = []
    with matplotlib.style.context(["default", RC]):
        figure = Figure(figsize=(width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH))
        axes = figure.add_axes((0, 0, 1, 1))  # one unit = one pixel
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        for column, name in enumerate(names):
            centre = left + cell_width * (column + 0.5)
            if turned:
                axes.text(centre - 3, top - 6, name, rotation=38, rotation_mode="anchor", ha="left")
            else:
                axes.text(centre, top - 8, name, ha="center")
        for row, (domain, shares) in enumerate(rows.items()):
            corner = top + cell_height * row
            axes.text(2, corner + cell_height / 2, shorten(domain, longest), ha="left", va="center_baseline")
            for column, share in enumerate(shares):
                own = experts[column] == domain
                place = (left + cell_width * column + 1, corner + 1, cell_width - 2, cell_height - 2)
                _draw_cell(axes, place, share, own)
                if own:
                    told.append(f"{shorten(domain, 64)} {percent(share)} %")
        where = f"Shares of the own expert at layer {shorten(layer, 20)}: "
        return inline_svg(figure, prefix, where + ", ".join(told))


def _draw_cell(axes: Axes, place: tuple[float, ...], share: float, outlined: bool) -> None:
    """One share; `place` is left, top, width and height in pixels."""
    x, y, width, height = place
    axes.add_patch(Rectangle((x, y), width, height, facecolor=HEAT, alpha=max(share, 0.07), linewidth=0))
    if outlined:
        axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=INK, linewidth=1.2))
    colour = ON_HEAT if share >= _DARK_ENOUGH else INK
    middle: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 11}
    axes.text(x + width / 2, y + height / 2, percent(share), color=colour, **middle)
