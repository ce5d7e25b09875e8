"""Figures: well-formed, the same each time, no colour that dark hides, no name that could break out."""

import re
from xml.etree import ElementTree

import matplotlib
import pytest

from collegium.reports.plots import accuracy_panels, routing_panels
from collegium.reports.reading import parse_summary

HOSTILE = "$\\frac{<script>alert(1)</script>\x1b\x00]]>--><!-- &amp; 医院\uffff"


def _both(summary):
    parsed = parse_summary(summary)
    return accuracy_panels(parsed) + routing_panels(parsed)


def test_one_panel_for_each_domain_and_layer(summary):
    parsed = parse_summary(summary)
    assert [panel.title for panel in accuracy_panels(parsed)] == parsed.domains
    assert [panel.title for panel in routing_panels(parsed)] == ["Layer 1"]
    assert "unified 95.3 %" in accuracy_panels(parsed)[0].svg
    assert ">98.1</text>" in routing_panels(parsed)[0].svg


def test_figures_are_deterministic_and_ignore_the_users_style(summary):
    first = _both(summary)
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": None, "lines.linewidth": 9, "font.size": 30}):
        assert _both(summary) == first
    assert _both(summary) == first


def test_elements_are_well_formed_and_ids_unique_over_all_figures(summary):
    ids = []
    for panel in _both(summary):
        root = ElementTree.fromstring(panel.svg)
        here = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
        used = re.findall(r'(?:href="|url\()#([\w-]+)', panel.svg)
        assert set(used) <= set(here)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        ids += here
    assert len(ids) == len(set(ids))


def test_colours_are_variables_and_nothing_is_loaded(summary):
    for panel in _both(summary):
        assert not re.findall(r"(?<!, )#[0-9a-f]{6}\b", panel.svg)
        assert "currentColor" in panel.svg
        assert "http" not in panel.svg
        assert "font-family" not in panel.svg
        assert not re.search(r"<(metadata|style|image|script)", panel.svg)


def test_hostile_names_stay_text(summary):
    for accuracy in summary["accuracy"].values():
        accuracy["union"][HOSTILE] = 0.4
    summary["accuracy"][HOSTILE] = {"union": {"newsroom": 0.4}}
    summary["routing"] = {
        "experts": [HOSTILE, "b"],
        "by_layer": {HOSTILE: {HOSTILE: [0.5, 0.5], "b": [0, 1]}},
    }
    for panel in _both(summary):
        tags = {element.tag for element in ElementTree.fromstring(panel.svg).iter()}
        assert tags <= {"svg", "g", "defs", "path", "use", "text", "clipPath", "rect"}
        assert "\x1b" not in panel.svg


@pytest.mark.parametrize("accuracies", [(0.0, 0.0), (1.0, 1.0), (0.55, 0.45)])
def test_extreme_accuracies_are_inside_the_axis(accuracies):
    summary = {
        "project": "p",
        "accuracy": {m: {"union": {"a": v}} for m, v in zip(("seed", "unified"), accuracies, strict=True)},
    }
    for examples in ({}, {"a": 7}):
        panel = accuracy_panels(parse_summary({**summary, "examples": examples}))[0]
        places = [float(x) for x in re.findall(r'<use [^>]*x="([\d.]+)"', panel.svg)]
        assert len(places) == 2
        assert all(106 <= x <= 274 for x in places)


def test_a_marker_at_zero_is_clear_of_the_longest_name():
    summary = {"project": "p", "accuracy": {name: {"union": {"a": 0.0}} for name in ("task-arithmetic", "soup")}}
    root = ElementTree.fromstring(accuracy_panels(parse_summary(summary))[0].svg)
    markers = [float(element.attrib["x"]) for element in root.iter("use")]
    name = next(element for element in root.iter("text") if element.text == "task-arithmetic")
    width = 12 * 0.52 * len(name.text)  # pixels, in a wide font of 12 pixels
    assert float(name.attrib["x"]) + width < min(markers) - 5  # half of a marker


def test_intervals_of_the_summary_are_drawn():
    values = {"project": "p", "accuracy": {"unified": {"union": {"a": 0.5}}}, "examples": {"a": 10}}

    def line(intervals):
        svg = accuracy_panels(parse_summary({**values, "intervals": intervals}))[0].svg
        path = next(e for e in ElementTree.fromstring(svg).iter("path") if "var(--unified" in e.attrib["style"])
        left, right = re.findall(r"[ML] ([\d.]+)", path.attrib["d"])
        return float(right) - float(left)

    whole = 320 - 106 - 46  # pixels of the axis, from 40 % (the low end) to 100 %
    assert line({"unified": {"union": {"a": [0.4, 0.7]}}}) == pytest.approx(whole / 2, abs=0.1)
    assert line({}) == 0  # the dot alone


def test_rows_that_do_not_match_the_experts_are_left_out():
    routing = {"experts": ["a", "seed"], "by_layer": {"0": {"a": [0.9, 0.1], "b": [1.0]}, "1": {"b": [1.0]}}}
    panels = routing_panels(parse_summary({"project": "p", "accuracy": {"seed": {}}, "routing": routing}))
    assert [panel.title for panel in panels] == ["Layer 0"]
    assert "a 90.0 %" in panels[0].svg
    assert "b " not in panels[0].svg.partition('aria-label="')[2].partition('"')[0].partition(": ")[2]
