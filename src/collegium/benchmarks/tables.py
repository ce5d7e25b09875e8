"""A suite's table as Markdown, LaTeX and CSV, and its records as JSON lines."""

import csv
import io
import json
from pathlib import Path

from collegium.benchmarks.results import Results, Row
from collegium.benchmarks.statistics import LEVEL
from collegium.core.artifacts import write_file

LATEX_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {"±": "$\\pm$", "−": "$-$"}


FILES = ("table.md", "table.tex", "table.csv", "rows.jsonl")


def write_tables(results: Results, folder: Path) -> None:
    """Write the table in three forms, and the records."""
    records = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in results.cells)
    for name, content in zip(
        FILES, (markdown(results), latex(results), comma_separated(results), records), strict=True
    ):
        write_file(folder / name, content.encode())


def markdown(results: Results) -> str:
    """The table, what it shows, and what failed."""
    header, *lines = _cells(results)
    rule = ["---", *("---:" for _ in header[1:])]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *lines])
    parts = [table, _legend(results)]
    notes = [f"* `{row.method}`: {row.note}" for row in results.rows if row.note]
    if notes:
        parts.append("\n".join(notes))
    if results.stages:
        parts.append(_stages(results))
    if results.failures:
        failed = [f"* {name}: {reason.splitlines()[0]}" for name, reason in results.failures.items()]
        parts.append("**Failed**, and not in the table:\n\n" + "\n".join(failed))
    if results.missing:
        parts.append(f"Not run: {'; '.join(results.missing)}.")
    return "\n\n".join(parts) + "\n"


def latex(results: Results) -> str:
    """A booktabs tabular."""
    header, *lines = [[_escaped(cell) for cell in cells] for cells in _cells(results)]
    rows = "\n".join(" & ".join(cells) + r" \\" for cells in lines)
    columns = "l" + "r" * (len(header) - 1)
    return (
        f"% {_legend(results)}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n"
        f"{' & '.join(header)} \\\\\n\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}\n"
    )


def comma_separated(results: Results) -> str:
    """One line a method: means and deviations in percent, differences in points; empty where there is none."""
    domains = _domains(results)
    names = [f"{setting} {domain}" for setting in ("union", "told") for domain in domains]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spread = [f"{name}{suffix}" for name in [*names, "routed"] for suffix in ("", " std")]
    writer.writerow(["method", "seeds", *spread, "difference", "low", "high"])
    for row in results.rows:
        values = [getattr(row, setting).get(domain) for setting in ("union", "told") for domain in domains]
        flat = [value for pair in [*values, row.routed] for value in (pair or (None, None))]
        found = row.difference
        difference = (None, None, None) if found is None else (100 * found.mean, 100 * found.low, 100 * found.high)
        rounded = ["" if value is None else f"{value:.3f}" for value in (*flat, *difference)]
        writer.writerow([row.method, " ".join(map(str, row.seeds)), *rounded])
    return text.getvalue()


def _cells(results: Results) -> list[list[str]]:
    """Header, and a line for each method."""
    domains = [name for name in _domains(results) if name != "mean"]
    header = ["union of all labels, %", *domains, "mean", "told", "routed", f"− {results.suite.reference}", "seeds"]
    return [header, *(_line(row, domains) for row in results.rows)]


def _line(row: Row, domains: list[str]) -> list[str]:
    found = row.difference
    compared = "" if found is None else f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    return [
        row.method,
        *(_mean_std(row.union.get(name)) for name in domains),
        _mean_std(row.union["mean"]),
        _mean_std(row.told["mean"]),
        _mean_std(row.routed),
        compared.replace("-", "−"),
        str(len(row.seeds)),
    ]


def _domains(results: Results) -> list[str]:
    """All domains, `mean` last: variants may have fewer owners."""
    named = dict.fromkeys(name for row in results.rows for name in row.union)
    return [*(name for name in named if name != "mean"), "mean"]


def _mean_std(found: tuple[float, float | None] | None) -> str:
    if found is None:
        return ""
    mean, std = found
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"


def _stages(results: Results) -> str:
    first = next(iter(results.suite.variants))
    lines = [f"| {name} | {_mean_std(seconds)} | {peak[0]:,.0f} |" for name, (seconds, peak) in results.stages.items()]
    return "\n".join([f"| stage of {first} | seconds | peak memory, MB |", "| --- | ---: | ---: |", *lines])


def _legend(results: Results) -> str:
    suite = results.suite
    return (
        f"Suite {suite.name}, seeds {', '.join(map(str, suite.seeds))}: mean ± std over seeds; the difference to "
        f"{suite.reference} in points with a {LEVEL:.0%} interval of a paired bootstrap over seeds and test examples."
    )


def _escaped(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)
