"""Names are shown, never obeyed; numbers have units; intervals match a published example."""

import pytest

from collegium.reports.reading import parse_summary
from collegium.reports.wording import (
    best_methods,
    clean,
    epsilon,
    headline,
    human_bytes,
    human_seconds,
    method_name,
    shorten,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31m", "a\\x1b[31m"),
        ("a\nb\r\tc\x00\x7f\x9b", "a\\nb\\r\\tc\\x00\\x7f\\x9b"),
        ("\u202etxt.exe\u2066", "\\u202etxt.exe\\u2066"),
        ("\ud800\u2028\ufeff", "\\ud800\\u2028\\ufeff"),
        ("حوزه\u200cای 医院 é 👩\u200d⚕️", "حوزه\u200cای 医院 é 👩\u200d⚕️"),
    ],
)
def test_hidden_characters_become_visible_and_text_stays(text, shown):
    assert clean(text) == shown
    assert clean(shown) == shown
    clean(text).encode()


def test_lines_are_kept_only_on_request():
    assert clean("a\nb\x07", keep_lines=True) == "a\nb\\x07"


def test_shorten_counts_the_ellipsis():
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abcde…"


def test_numbers_have_units():
    assert [human_bytes(size) for size in (0, 999, 1000, 29876543, 999_960_000, 2e15, None)] == [
        "0 bytes", "999 bytes", "1.0 kB", "29.9 MB", "1.0 GB", "2000.0 TB", "–",
    ]  # fmt: skip
    assert [human_seconds(s) for s in (0.04, 59.9, 59.96, 185, 3599.7, 3725, None)] == [
        "0.0 s", "59.9 s", "1 min 00 s", "3 min 05 s", "1 h 00 min", "1 h 02 min", "–",
    ]  # fmt: skip
    assert [epsilon(e) for e in ("infinity", float("inf"), "inf", 2.5, "8 per release", "not stated")] == [
        "∞", "∞", "∞", "2.5", "8 per release", "not stated",
    ]  # fmt: skip


def test_methods_have_plain_names():
    assert method_name("expert:cinema") == "expert of cinema"
    assert method_name("seed") == "seed model"
    assert method_name("btm") == "btm"


def test_headline_names_unified_oracle_soup_and_best_expert(summary):
    text = headline(parse_summary(summary))
    assert "unified model answers 85.4 %" in text
    assert "reaches 86.1 %" in text
    assert "(soup) 77.1 % and the best single expert (distribution) 69.2 %." in text


def test_headline_without_a_unified_model_says_so():
    text = headline(parse_summary({"project": "p", "accuracy": {"seed": {"told": {"a": 0.5}}}}))
    assert text == "This run has no accuracy of a unified model with the labels of all owners competing."


def test_the_oracle_is_never_the_best_and_ties_are_all_best(summary):
    parsed = parse_summary(summary)
    assert best_methods(parsed, "union", "mean") == {"unified"}
    assert best_methods(parsed, "union", "newsroom") == {"expert:newsroom"}
    tie = parse_summary({"project": "p", "accuracy": {m: {"union": {"a": 0.5}} for m in ("soup", "seed", "oracle")}})
    assert best_methods(tie, "union", "a") == {"soup", "seed"}
