"""The page: every section, well-formed, self-contained, the same bytes each time, hostile names stay text."""

import copy
import json
from html.parser import HTMLParser

import pytest

from collegium.core.errors import RunError
from collegium.reports.page import render_report, write_report

SECTIONS = ["accuracy", "figure", "routing", "owners", "pool", "released", "unification", "stages", "repeat"]
HOSTILE = "<script>alert(1)</script>[red]\x1b[31m\u202e\"' onload=x {{ 7*7 }}"
SHOWN = [
    "85.4\u00a0%", "97.8 %", "29.9 MB", "2B/m = 0.034", "∞", "148 proxies", "was not kept",
    "1 min 15 s", "a news article about {label}", "19,876 items", "c0ffee42", "method: dpp",
    "OMP_NUM_THREADS=2 collegium run recipe.yaml", "kept out of the charter",
    "less than the seed model (55 %)", "public pool 40", "chosen by several owners 1", "0.31", "over 2,000 items",
]  # fmt: skip
OPTIONAL = [
    "random_seed", "task", "created_with", "owners", "pool", "examples", "routing", "stages", "coverage", "pool_map",
    "released_bytes", "ledger", "unification", "settings", "hashes",
]  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr"}


class _Checker(HTMLParser):
    """Fails on tags that do not match; collects tags, ids, attributes and text."""

    def __init__(self, page: str):
        super().__init__()
        self.open, self.tags, self.ids, self.attributes, self.text = [], [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_every_section_is_there_and_the_page_is_well_formed(summary):
    page = render_report(summary)
    checker = _Checker(page)
    assert len(checker.ids) == len(set(checker.ids))
    assert [name for name in checker.ids if name in SECTIONS] == SECTIONS
    for shown in SHOWN:
        assert shown in "".join(checker.text), shown


def test_nothing_is_loaded_and_nothing_runs(summary):
    page = render_report(summary)
    checker = _Checker(page)
    assert not {"script", "img", "iframe", "object", "embed", "base", "form", "image"} & set(checker.tags)
    loads = [value for name, value in checker.attributes if name in ("src", "href", "srcset", "action", "data")]
    assert all(value.startswith("#") or value == "data:," for value in loads)
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page
    assert not [name for name, _ in checker.attributes if name.startswith("on")]
    assert "default-src 'none'" in page


def test_hostile_text_everywhere_stays_text(summary):
    hostile = _replace_texts(copy.deepcopy(summary))
    plain, checker = _Checker(render_report(summary)), _Checker(render_report(hostile))
    assert set(checker.tags) == set(plain.tags)
    assert {name for name, _ in checker.attributes} == {name for name, _ in plain.attributes}
    text = "".join(checker.text)
    assert "<script>alert(1)</script>[red]\\x1b[31m\\u202e" in text
    assert "{{ 7*7 }}" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_lone_surrogates_can_be_written(tmp_path):
    (tmp_path / "summary.json").write_text('{"project": "\\ud800", "accuracy": {"seed": {"union": {"\\udfff": 1}}}}')
    assert "\\ud800" in write_report(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("part", OPTIONAL)
def test_any_optional_part_may_be_missing_or_empty(summary, part):
    empty = {**summary, part: type(summary[part])()} if isinstance(summary[part], dict) else None
    without = {key: value for key, value in summary.items() if key != part}
    for case in (without, empty) if empty is not None else (without,):
        page = render_report(case)
        _Checker(page)
        assert "None" not in page
        assert "undefined" not in page.lower()


def test_the_smallest_summary_shows_only_what_it_has():
    checker = _Checker(render_report({"project": "p", "accuracy": {"seed": {"told": {"a": 0.5}}}}))
    assert [name for name in checker.ids if name in SECTIONS] == ["accuracy", "repeat"]


def test_intervals_stand_where_the_summary_has_them(summary):
    intervals = {"newsroom": [0.931, 0.969], "cinema": None, "mean": [0.831, 0.877]}
    page = render_report({**summary, "intervals": {"unified": {"union": intervals}}})
    shown = "".join(_Checker(page).text)
    assert "95.393.1–96.9" in shown
    assert "85.483.1–87.7" in shown
    assert shown.count("95 % intervals") == 2
    assert "95 % intervals" not in render_report({**summary, "intervals": {}})
    assert page.count('class="interval"') == 2


def test_the_map_that_lies_beside_the_summary_is_shown(summary, tmp_path):
    points = summary.pop("pool_map")
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert "pool-map" not in _Checker(write_report(tmp_path).read_text()).ids
    (tmp_path / "map").mkdir()
    (tmp_path / "map" / "map.json").write_text(json.dumps(points))
    assert "pool-map" in _Checker(write_report(tmp_path).read_text()).ids


def test_the_same_summary_gives_the_same_bytes(summary, tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    first = write_report(tmp_path)
    second = write_report(tmp_path, tmp_path / "pages" / "other.html")
    assert first == tmp_path / "report.html"
    assert first.read_bytes() == second.read_bytes()
    assert write_report(tmp_path, second.parent) == second.parent / "report.html"


def test_a_page_that_cannot_be_written_is_a_clear_error_and_leaves_nothing(summary, tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunError, match="could not be written"):
        write_report(tmp_path, tmp_path / "summary.json" / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_settings_too_deep_are_a_clear_error(summary):
    settings: dict = {}
    for _ in range(900):
        settings = {"a": settings}
    with pytest.raises(Exception, match="nested too deeply"):
        render_report({**summary, "settings": settings})


def _replace_texts(value):
    """Every text and every free key of a summary replaced by a hostile one (made unique by a number)."""
    count = iter(range(10**6))
    fixed = {"mean", "unified", "oracle", "soup", "seed"}

    def name(old):
        return names.setdefault(old, f"{HOSTILE}{next(count)}")

    names: dict = {}
    value["project"], value["task"] = name("project"), name("task")
    for part in (
        "owners",
        "examples",
        "stages",
        "released_bytes",
        "ledger",
        "hashes",
        "created_with",
        "settings",
    ):
        value[part] = {name(key): inner for key, inner in value[part].items()}
    value["hashes"] = dict.fromkeys(value["hashes"], HOSTILE)
    value["created_with"] = dict.fromkeys(value["created_with"], HOSTILE)
    value["created_with"]["threads"] = 2
    for owner in value["owners"].values():
        owner |= {"data": {"train": HOSTILE}, "prompt": HOSTILE, "labels": [HOSTILE]}
    for entries in value["ledger"].values():
        for entry in entries:
            entry.update(dict.fromkeys(entry, HOSTILE))
    value["accuracy"] = {
        method if method in fixed else f"expert:{name(method)}": {
            labels: {d if d in fixed else name(d): v for d, v in row.items()} for labels, row in accuracy.items()
        }
        for method, accuracy in value["accuracy"].items()
    }
    routing = value["routing"]
    routing["experts"] = [name(expert) for expert in routing["experts"]]
    routing["by_layer"] = {HOSTILE: {name(d): row for d, row in routing["by_layer"]["1"].items()}}
    for part in ("coverage", "pool_map"):
        value[part]["owners"] = {name(owner): inner for owner, inner in value[part]["owners"].items()}
    value["unification"] |= {"router_init": HOSTILE, "flags": [HOSTILE]}
    value["pool"]["data"] = HOSTILE
    return value
