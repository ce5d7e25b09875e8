"""The terminal tables: they fit, the honest setting comes first, names cannot steer the terminal."""

import io

import pytest
from rich.console import Console

from collegium.reports.tables import accuracy_table, print_summary

HOSTILE = "[red]\x1b[2J<script>\u202e:smile:[/]"


def _printed(summary, width=88, **options):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=width, **options))
    return out.getvalue()


def test_every_part_is_printed_and_union_comes_first(summary):
    text = _printed(summary)
    assert text.index("(union)") < text.index("(told)") < text.index("Routing: 97.8 %")
    assert text.index("Routing") < text.index("Released by each owner") < text.index("Time and peak memory")
    assert "29.9 MB" in text
    assert "1 min 15 s" in text
    assert "3 min 22 s" in text
    assert "unified" in text


@pytest.mark.parametrize("owners", [1, 3, 25])
@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_the_terminal_and_no_figure_is_cut(owners, width):
    names = [f"owner-with-a-long-name-{i}" for i in range(owners)]
    values = {name: 0.1 + i / 1000 for i, name in enumerate(names)}
    text = _printed({"project": "p", "accuracy": {"unified": {"union": values}}}, width)
    assert max(map(len, text.splitlines())) <= width
    for value in values.values():
        assert f"{100 * value:.1f}" in text
    assert "…" not in text
    assert text.count("mean") == 1


def test_the_best_but_the_oracle_is_bold(summary):
    table = accuracy_table(summary, "union")
    methods = [cell.plain for cell in table.columns[0].cells]
    means = dict(zip(methods, table.columns[-1].cells, strict=True))
    assert means["unified"].style == "bold"
    assert means["oracle"].style == means["soup"].style == ""


def test_hostile_names_are_shown_and_not_obeyed(summary):
    for accuracy in summary["accuracy"].values():
        for labels in accuracy.values():
            labels[HOSTILE] = 0.5
    summary["accuracy"][f"expert:{HOSTILE}"] = {"union": {HOSTILE: 0.4}}
    summary["released_bytes"][HOSTILE] = 10
    summary["stages"][f"contribute:{HOSTILE}"] = {"seconds": 1.0, "peak_bytes": 5}
    text = _printed(summary, 300)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]\\x1b[2J<script>\\u202e:smile:[/]" in text
    assert "\x1b[2J" not in _printed(summary, 300, force_terminal=True)


def test_only_what_exists_is_printed():
    text = _printed({"project": "p", "accuracy": {"seed": {"told": {"a": 0.5, "b": None}}}})
    assert "(told)" in text
    assert "–" in text
    assert "(union)" not in text
    assert "Routing" not in text
    assert "Released" not in text
