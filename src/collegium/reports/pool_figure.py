"""The map of the pool as a figure: paths for an inline SVG that the template writes, a layer for each owner.

A point is a line of no length with a thick end, 12 bytes: 3,500 points take 45 kB, and CSS gives them the colours of
the page in light, dark and print. Colour is not alone: an owner also has a shape; 24 owners differ in the two together.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from collegium.reports.reading import PoolMap
from collegium.reports.wording import clean

# A shape for each of the colours e0 to e7 of the page's style. Two colours with the same shape differ by 22 or more in
# CIELAB, light and dark, also to the colour-blind (protan, deutan and tritan vision after Machado et al. 2009).
_SHAPES = ("round", "square", "diamond", "diamond", "round", "square", "round", "square")
_NEXT = {"round": "square", "square": "diamond", "diamond": "round"}
_UNITS = 1000  # of the SVG in one unit of the map
_MARGIN = 40
_SIN_45 = 0.5**0.5


@dataclass(frozen=True)
class Layer:
    """Points of one kind: an owner's name (not yet cleaned), how many, classes of the style, and the path."""

    name: str
    count: int
    style: str
    path: str


@dataclass(frozen=True)
class PoolFigure:
    """`box` is the SVG's viewBox; `shared` are the proxies of several owners."""

    box: str
    description: str
    pool: Layer
    owners: list[Layer]
    shared: Layer


def pool_figure(found: PoolMap) -> PoolFigure | None:
    """The figure of a map; None where it has no points."""
    points = [*found.pool, *found.shared, *(point for own in found.owners.values() for point in own)]
    if not points:
        return None
    horizontal, vertical = ([round(_UNITS * point[axis]) for point in points] for axis in (0, 1))
    left, top = min(horizontal) - _MARGIN, min(vertical) - _MARGIN
    box = f"{left} {top} {max(horizontal) + _MARGIN - left} {max(vertical) + _MARGIN - top}"
    owners = [_owner(number, name, own) for number, (name, own) in enumerate(found.owners.items())]
    told = ", ".join(f"{clean(layer.name)} {layer.count}" for layer in owners)
    return PoolFigure(
        box=box,
        description=f"Map of {len(found.pool)} items of the public pool and of proxies: {told}; "
        f"chosen by several owners {len(found.shared)}",
        pool=Layer("public pool", len(found.pool), "pool-item", _path(found.pool)),
        owners=owners,
        shared=Layer("chosen by several owners", len(found.shared), "shared", _path(found.shared)),
    )


def _owner(number: int, name: str, points: Iterable[tuple[float, float]]) -> Layer:
    shape = _SHAPES[number % len(_SHAPES)]
    for _ in range(number // len(_SHAPES)):  # the ninth owner has the first one's colour and another shape
        shape = _NEXT[shape]
    places = list(points)
    if shape == "diamond":  # a square in a frame that the style turns by 45 degrees
        places = [((x + y) * _SIN_45, (y - x) * _SIN_45) for x, y in places]
    return Layer(name, len(places), f"proxy {shape} e{number % len(_SHAPES)}", _path(places))


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "".join(f"M{round(_UNITS * x)} {round(_UNITS * y)}h0" for x, y in points)
