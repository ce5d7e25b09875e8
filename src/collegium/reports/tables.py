"""The summary of a run in the terminal: compact tables that fit 80 to 100 columns.

The union of labels comes first: one deployed model must find the answer among the labels of all owners.
*Told* is the easier setting, where only the labels of the input's own domain compete. Cells are `Text`
objects, never markup: names come from other people.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from collegium.reports.reading import Pool, RunSummary, parse_summary
from collegium.reports.wording import (
    NOTHING,
    best_methods,
    clean,
    human_bytes,
    human_seconds,
    lowest_methods,
    method_name,
    percent,
    perplexity,
    shorten,
)

_TITLES = {
    "union": "Accuracy in %, labels of all owners compete (union)",
    "told": "Accuracy in %, only the labels of the input's own domain compete (told)",
}
_METHOD_WIDTH, _COLUMN_WIDTH, _PADDING = 26, 14, 2
Summary = RunSummary | Mapping[str, Any]


def print_summary(summary: Summary, console: Console) -> None:
    """Print accuracy or perplexity by domain, routing, what was released, time and memory; missing parts are left out.

    Raises:
        ArtifactError: the summary is malformed.
    """
    summary = parse_summary(summary)
    if summary.pool is not None and summary.pool.data is not None:
        console.print(pool_line(summary.pool), end="\n\n")
    for labels in ("union", "told"):
        for number, domains in enumerate(_chunks(summary, console.width)):
            if any(summary.by_domain(method, labels) for method in summary.accuracy):
                console.print(accuracy_table(summary, labels, domains, with_mean=number == 0))
    if summary.perplexity:
        console.print(perplexity_table(summary))
    if summary.routing is not None and summary.routing.sequence is not None:
        console.print(routing_line(summary.routing.sequence), end="\n\n")
    if summary.released_bytes:
        console.print(released_table(summary))
    if summary.stages:
        console.print(stages_table(summary))


def pool_line(pool: Pool) -> Text:
    """Which public texts were used."""
    size = "" if pool.items is None else f", {pool.items:,} items"
    return Text(f"Public pool: {shorten(pool.data, 40)}{size}.")


def accuracy_table(
    summary: Summary, labels: str = "union", domains: Sequence[str] | None = None, with_mean: bool = True
) -> Table:
    """One row for each method, one column for each domain, then their mean; the best but the oracle is bold.

    Args:
        labels: `union` or `told`.
        domains: the domains to show; None = all.
    """
    summary = parse_summary(summary)
    columns = [*(summary.domains if domains is None else domains), *(["mean"] if with_mean else [])]
    best = {domain: best_methods(summary, labels, domain) for domain in columns}
    table = _table(_TITLES[labels])
    table.add_column(Text("method"), max_width=_METHOD_WIDTH, overflow="fold")
    for domain in columns:
        table.add_column(
            Text(shorten(domain, 64)), justify="right", min_width=6, max_width=_COLUMN_WIDTH, overflow="fold"
        )
    for method in summary.accuracy:
        by_domain = summary.by_domain(method, labels)
        values = [summary.mean(method, labels) if d == "mean" else by_domain.get(d) for d in columns]
        if by_domain:
            cells = [
                Text(percent(value), style="bold" if method in best[domain] else "")
                for domain, value in zip(columns, values, strict=True)
            ]
            table.add_row(Text(shorten(method_name(method), 80), style="dim" if method == "oracle" else ""), *cells)
    return table


def perplexity_table(summary: Summary) -> Table:
    """One row for each method; the lowest but the oracle's is bold, the mean is geometric."""
    summary = parse_summary(summary)
    columns = [*summary.domains, "mean"]
    best = {domain: lowest_methods(summary, domain) for domain in columns}
    table = _table("Perplexity of the texts of each domain (lower is better; mean: geometric)")
    table.add_column(Text("method"), max_width=_METHOD_WIDTH, overflow="fold")
    for domain in columns:
        table.add_column(Text(shorten(domain, 64)), justify="right", max_width=_COLUMN_WIDTH, overflow="fold")
    for method, found in summary.perplexity.items():
        cells = [
            Text(perplexity(found.get(domain)), style="bold" if method in best[domain] else "") for domain in columns
        ]
        table.add_row(Text(shorten(method_name(method), 80), style="dim" if method == "oracle" else ""), *cells)
    return table


def routing_line(sequence: float) -> Text:
    """How often the router's most used expert is the one of the input's own domain."""
    return Text(f"Routing: {percent(sequence)} % of the test inputs use their own domain's expert most.")


def released_table(summary: Summary) -> Table:
    """What left each owner, in bytes, and how many ledger entries describe it."""
    summary = parse_summary(summary)
    table = _table("Released by each owner")
    table.add_column(Text("owner"), max_width=40, overflow="fold")
    table.add_column(Text("size"), justify="right", no_wrap=True)
    table.add_column(Text("ledger entries"), justify="right", no_wrap=True)
    for owner, size in summary.released_bytes.items():
        entries = str(len(summary.ledger[owner])) if owner in summary.ledger else NOTHING
        table.add_row(Text(shorten(owner, 80)), Text(human_bytes(size)), Text(entries))
    return table


def stages_table(summary: Summary) -> Table:
    """Time and peak memory of each stage; the last row adds the times and takes the highest memory."""
    summary = parse_summary(summary)
    table = _table("Time and peak memory")
    table.add_column(Text("stage"), max_width=40, overflow="fold")
    table.add_column(Text("time"), justify="right", no_wrap=True)
    table.add_column(Text("peak memory"), justify="right", no_wrap=True)
    for name, stage in summary.stages.items():
        table.add_row(
            Text(shorten(name.replace(":", ": ", 1), 90)),
            Text(human_seconds(stage.seconds)),
            Text(human_bytes(stage.peak_bytes)),
        )
    if len(summary.stages) > 1:
        seconds, peak_bytes = totals(summary)
        table.add_section()
        table.add_row(Text("all stages"), Text(human_seconds(seconds)), Text(human_bytes(peak_bytes)))
    return table


def totals(summary: RunSummary) -> tuple[float | None, int | None]:
    """Seconds of all stages together, and the highest peak memory of any, in bytes."""
    seconds = [stage.seconds for stage in summary.stages.values() if stage.seconds is not None]
    peaks = [stage.peak_bytes for stage in summary.stages.values() if stage.peak_bytes is not None]
    return sum(seconds) if seconds else None, max(peaks, default=None)


def _table(title: str) -> Table:
    return Table(
        title=Text(clean(title), style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        expand=False,
    )


def _chunks(summary: RunSummary, width: int) -> list[list[str]]:
    """Domains in groups whose columns fit beside the methods; the first group leaves room for the mean."""
    names = [len(method_name(method)) for method in summary.accuracy]
    free = width - min(max(names), _METHOD_WIDTH) - _PADDING - (6 + _PADDING)
    chunks: list[list[str]] = [[]]
    used = 0
    for domain in summary.domains:
        needed = min(max(len(shorten(domain, 64)), 6), _COLUMN_WIDTH) + _PADDING
        if chunks[-1] and used + needed > free:
            chunks.append([])
            used = 0
        chunks[-1].append(domain)
        used += needed
    return chunks
