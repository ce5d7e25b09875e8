"""The map as paths: every point is in one layer and inside the box, and owners can be told apart."""

import math
import re

import numpy as np
import pytest

from collegium.reports.page import render_report
from collegium.reports.pool_figure import pool_figure
from collegium.reports.reading import PoolMap, parse_summary


def _points(path: str) -> list[tuple[float, float]]:
    return [(int(x) / 1000, int(y) / 1000) for x, y in re.findall(r"M(-?\d+) (-?\d+)h0", path)]


def test_points_are_where_the_map_has_them_and_inside_the_box(summary):
    found = parse_summary(summary).pool_map
    figure = pool_figure(found)
    left, top, width, height = (int(part) / 1000 for part in figure.box.split())
    assert np.array(_points(figure.pool.path)) == pytest.approx(np.array(found.pool))
    assert _points(figure.shared.path) == found.shared
    for x, y in [*found.pool, *found.shared]:
        assert left < x < left + width
        assert top < y < top + height
    assert [layer.count for layer in figure.owners] == [2, 2, 2]
    assert "newsroom 2" in figure.description


def test_a_diamond_lands_on_its_place_once_its_frame_is_turned():
    place = (0.25, -0.75)
    layer = pool_figure(PoolMap(owners={"a": [(0, 0)], "b": [(0, 0)], "c": [place]})).owners[2]
    assert "diamond" in layer.style
    ((x, y),) = _points(layer.path)
    cosine = math.cos(math.radians(45))
    assert (x * cosine - y * cosine, x * cosine + y * cosine) == pytest.approx(place, abs=2e-3)


def test_24_owners_differ_in_colour_or_shape():
    figure = pool_figure(PoolMap(owners={f"owner-{number}": [(0, 0)] for number in range(24)}))
    assert len({layer.style for layer in figure.owners}) == 24


def test_a_map_without_points_is_no_figure(summary):
    assert pool_figure(PoolMap()) is None
    assert 'id="pool-map"' not in render_report({**summary, "pool_map": {}})


def test_a_large_map_takes_less_than_200_kb(summary):
    points = [[(i % 101) / 101 - 1, (i % 97) / 97 - 1] for i in range(2000)]
    large = {"pool": points, "owners": {f"owner-{number}": points[:500] for number in range(10)}, "shared": points[:50]}
    assert len(render_report({**summary, "pool_map": large})) - len(render_report(summary)) < 200_000
