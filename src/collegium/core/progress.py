"""Progress of long work: a bar with ETA on a terminal, plain lines elsewhere, nothing with `--quiet`."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")
_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
_BAR: ContextVar[Console | None] = ContextVar("bar", default=None)  # on which a bar is drawn now


class Bar:
    """One running task; `advance` moves it."""

    def __init__(self, progress: Progress | None, task_id):
        self._progress, self._task_id = progress, task_id

    def advance(self, steps: int = 1) -> None:
        if self._progress is not None:
            self._progress.advance(self._task_id, steps)

    def describe(self, text: str) -> None:
        """Say something else before the bar; without a terminal nothing."""
        if self._progress is not None:
            self._progress.update(self._task_id, description=escape(text))


def set_quiet(quiet: bool) -> None:
    """Switch bars and lines off for the current context."""
    _QUIET.set(quiet)


def draws_bars() -> bool:
    """Whether bars are seen: on a terminal, without `--quiet`."""
    return not _QUIET.get() and sys.stderr.isatty()


def say(text: str) -> None:
    """One plain line about what happens now, on stderr, above a bar that is drawn."""
    if not _QUIET.get():
        console = _BAR.get() or Console(stderr=True, highlight=False)
        console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[Bar]:
    """A bar for `total` steps (None = unknown)."""
    if not draws_bars():
        yield Bar(None, None)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        token = _BAR.set(console)
        try:
            yield Bar(progress, progress.add_task(description, total=total))
        finally:
            _BAR.reset(token)


def tracked(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Iterate with a bar."""
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # pyright: ignore[reportArgumentType]
    with progress_bar(description, total) as bar:
        for item in items:
            yield item
            bar.advance()
