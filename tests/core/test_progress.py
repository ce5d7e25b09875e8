"""Progress: plain lines where there is no terminal, nothing with --quiet, a bar on a terminal."""

import contextvars
import sys

import pytest

from collegium.core.progress import draws_bars, progress_bar, say, set_quiet, tracked


def work() -> list[int]:
    say("train the expert of [bold]bank[/bold] …")
    with progress_bar("embed", 3) as bar:
        bar.advance(2)
    return list(tracked([1, 2, 3], "count"))


def test_without_a_terminal_there_are_plain_lines_on_stderr(capsys):
    assert work() == [1, 2, 3]
    out, err = capsys.readouterr()
    assert (out, err) == ("", "train the expert of [bold]bank[/bold] …\n")


def test_a_long_line_stays_one_line(capsys):
    say("word " * 60)
    assert capsys.readouterr().err.count("\n") == 1


def test_quiet_is_silent_and_ends_with_its_context(capsys):
    context = contextvars.copy_context()
    context.run(set_quiet, True)
    assert context.run(work) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")
    say("again")
    assert capsys.readouterr().err == "again\n"


def test_on_a_terminal_a_bar_is_drawn(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert list(tracked(range(3), "embed the pool")) == [0, 1, 2]
    assert "embed the pool" in capsys.readouterr().err


def test_a_bar_says_what_it_is_told_and_lines_stand_above_it(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert draws_bars()
    with progress_bar("rounds", 3) as bar:
        bar.describe("round 2: [3] answered")
        bar.advance()
        say("the gate has collapsed")
    say("done")
    told = capsys.readouterr().err
    assert "round 2: [3] answered" in told
    assert "the gate has collapsed\n" in told
    assert told.endswith("done\n")


def test_without_a_terminal_a_bar_is_told_nothing(capsys):
    assert not draws_bars()
    with progress_bar("rounds", 3) as bar:
        bar.describe("round 2")
    assert capsys.readouterr().err == ""
