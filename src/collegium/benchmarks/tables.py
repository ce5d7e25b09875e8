"""A suite's table as Markdown, LaTeX and CSV, and its records as JSON lines."""

import csv
import io
import json
from collections import Counter
from pathlib import Path

from collegium.benchmarks.kind import Column
from collegium.benchmarks.results import Results, Row
from collegium.benchmarks.statistics import LEVEL, Difference
from collegium.core.artifacts import write_file
from collegium.flow.summary import PACKAGES

LATEX_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {"±": "$\\pm$", "−": "$-$"}

MOST_NAMED = 20  # cells that were not run
RECORDS = "rows.jsonl"
DIFFERENCE = ("difference", "low", "high")
FILES = ("table.md", "table.tex", "table.csv", RECORDS)


def write_tables(results: Results, folder: Path) -> None:
    """Write the tables in three forms, and the records."""
    records = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in results.records)
    for name, content in zip(
        FILES, (markdown(results), latex(results), comma_separated(results), records), strict=True
    ):
        write_file(folder / name, content.encode())


def markdown(results: Results) -> str:
    """A table for each case, what they show, and what failed."""
    parts = []
    for case, rows in _by_case(results).items():
        if case:
            note = (results.suite.cases or {})[case].note
            parts.append(f"**{case}**" + (f": {note}" if note else ""))
        header, *lines = _cells(results, rows)
        rule = ["---", *("---:" for _ in header[1:])]
        parts.append("\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *lines]))
    parts.append(_legend(results))
    notes = dict.fromkeys(f"* `{row.method}`: {row.note}" for row in results.rows if row.note)
    if notes:
        parts.append("\n".join(notes))
    if len(results.stages) > 1:
        parts.append(_stages(results))
    if results.failures:
        failed = [f"* {name}: {reason.splitlines()[0]}" for name, reason in results.failures.items()]
        parts.append("**Failed**, and not in the table:\n\n" + "\n".join(failed))
    if results.missing:
        parts.append(f"Not run: {_missing(results)}.")
    return "\n\n".join(parts) + "\n"


def latex(results: Results) -> str:
    """A booktabs tabular for each case."""
    return f"% {_legend(results)}\n" + "\n".join(
        (f"% {case}\n" if case else "") + _tabular(_cells(results, rows)) for case, rows in _by_case(results).items()
    )


def comma_separated(results: Results) -> str:
    """One line a method and case: means and deviations, accuracies in percent, differences in points; empty where
    there is none.
    """
    suite, keys = results.suite, _keys(results.rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spread = [f"{key}{suffix}" for key in keys for suffix in ("", " std")]
    case = ["case"] if suite.cases else []
    compared = [f"{what}{suffix}" for suffix in ("", *(f" {key}" for key in results.kind.also)) for what in DIFFERENCE]
    writer.writerow([*case, "method", "seeds", *spread, *compared, *suite.tune])
    for row in results.rows:
        flat = [value for key in keys for value in row.values.get(key, (None, None))]
        for found in (row.difference, *(row.also[key] for key in results.kind.also)):
            flat += [None, None, None] if found is None else [100 * found.mean, 100 * found.low, 100 * found.high]
        rounded = ["" if value is None else f"{value:.3f}" for value in flat]
        chosen = [row.chosen.get(key, "") for key in suite.tune]
        writer.writerow([*([row.case] if case else []), row.method, " ".join(map(str, row.seeds)), *rounded, *chosen])
    return text.getvalue()


def _by_case(results: Results) -> dict[str, list[Row]]:
    """Case → its rows; one table at least."""
    cases = dict.fromkeys(row.case for row in results.rows) or {"": None}
    return {case: [row for row in results.rows if row.case == case] for case in cases}


def _cells(results: Results, rows: list[Row]) -> list[list[str]]:
    """Header, and a line for each method."""
    columns = results.kind.columns(_keys(rows))
    tuned = [key.rpartition(".")[2] for key in results.suite.tune]
    headings = [column.heading for column in columns]
    compared = [
        f"− {results.suite.reference}{what}" for what in ("", *(f", {one}" for one in results.kind.also.values()))
    ]
    header = [results.kind.title, *headings, *compared, *tuned, "seeds"]
    return [header, *(_line(results, row, columns) for row in rows)]


def _line(results: Results, row: Row, columns: list[Column]) -> list[str]:
    return [
        row.method,
        *(_mean_std(row.values.get(column.key), column.digits) for column in columns),
        *(_interval(found) for found in (row.difference, *(row.also[key] for key in results.kind.also))),
        *(str(row.chosen.get(key, "")) for key in results.suite.tune),
        str(len(row.seeds)),
    ]


def _missing(results: Results) -> str:
    """The cells, or, of many, their numbers by case or variant."""
    if len(results.missing) <= MOST_NAMED:
        return "; ".join(results.missing)
    part = 0 if results.suite.cases else -1
    counts = Counter(name.split(", ")[part] for name in results.missing)
    return f"{len(results.missing)} cells: " + ", ".join(f"{name} ({count})" for name, count in counts.items())


def _interval(found: Difference | None) -> str:
    """In points, as `+4.8 [+3.0, +6.5]`."""
    if found is None:
        return ""
    return f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]".replace("-", "−")


def _keys(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row.values))


def _tabular(cells: list[list[str]]) -> str:
    header, *lines = [[_escaped(cell) for cell in line] for line in cells]
    rows = "\n".join(" & ".join(line) + r" \\" for line in lines)
    columns = "l" + "r" * (len(header) - 1)
    return (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n"
        f"{' & '.join(header)} \\\\\n\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}\n"
    )


def _mean_std(found: tuple[float, float | None] | None, digits: int = 1) -> str:
    if found is None:
        return ""
    mean, std = (None if value is None else f"{value:.{digits}f}" for value in found)
    return f"{mean}" if std is None or digits == 0 else f"{mean} ± {std}"


def _stages(results: Results) -> str:
    first = next(iter(results.suite.variants))
    lines = [f"| {name} | {_mean_std(seconds)} | {peak[0]:,.0f} |" for name, (seconds, peak) in results.stages.items()]
    return "\n".join([f"| stage of {first} | seconds | peak memory, MB |", "| --- | ---: | ---: |", *lines])


def _legend(results: Results) -> str:
    suite = results.suite
    tuned = f" {', '.join(suite.tune)}: best on validation data, with seed {suite.seeds[0]}." if suite.tune else ""
    return (
        f"Suite {suite.name}, seeds {', '.join(map(str, suite.seeds))}: mean ± std over seeds; the difference to "
        f"{suite.reference} in points with a {LEVEL:.0%} interval of a paired bootstrap over seeds and "
        f"{results.kind.unit}.{tuned}{_versions(results)}"
    )


def _versions(results: Results) -> str:
    """As ` Run with torch 2.13.0.`; several of a package where cells were run with several."""
    found = {name: sorted({record["versions"][name] for record in results.records}) for name in PACKAGES}
    told = ", ".join(f"{name} {' and '.join(versions)}" for name, versions in found.items() if versions)
    return f" Run with {told}." if told else ""


def _escaped(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)
