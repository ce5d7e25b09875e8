"""One self-contained HTML page of a run: no script, no font, no image and no style from anywhere else.

The names in it come from other people: the template is autoescaped, every expression in it is cleaned of
control characters (`finalize`), and the page forbids scripts and loads by its own policy. The same summary
gives the same bytes, so the page has no date of its own.
"""

import errno
import os
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from collegium.core.artifacts import write_file
from collegium.core.errors import ArtifactError, RunError
from collegium.reports.plots import accuracy_panels, routing_panels
from collegium.reports.pool_figure import pool_figure
from collegium.reports.reading import (
    Fallback,
    JointTuning,
    Owner,
    RunSummary,
    parse_summary,
    read_run_summary,
)
from collegium.reports.tables import totals
from collegium.reports.wording import (
    NOTHING,
    best_methods,
    clean,
    cosine,
    epsilon,
    headline,
    human_bytes,
    human_seconds,
    interval,
    lowest_methods,
    method_name,
    percent,
    perplexity,
)

PAGE = "report.html"
TEMPLATE = "page.html.jinja"


def write_report(run_folder: Path, destination: Path | None = None) -> Path:
    """Write the page of a run and return its path.

    Args:
        run_folder: the folder that `collegium run` wrote.
        destination: a file, or a folder that gets `report.html`; None = the run folder.

    Raises:
        ArtifactError: the run folder holds no summary, or a malformed one.
        RunError: the page could not be written; a page that was there is untouched.
    """
    page = render_report(read_run_summary(run_folder))
    path = Path(run_folder if destination is None else destination)
    path = path / PAGE if path.is_dir() else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, page.encode())
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise RunError(f"{path} could not be written: {reason}.", do="name another file, or free some space") from error
    return path


def render_report(summary: RunSummary | Mapping[str, Any]) -> str:
    """The HTML of a summary.

    Raises:
        ArtifactError: the summary is malformed.
    """
    summary = parse_summary(summary)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=cleaned, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": percent,
        "perplexity": perplexity,
        "bytes": human_bytes,
        "seconds": human_seconds,
        "epsilon": epsilon,
        "cosine": cosine,
        "method": method_name,
    }
    template = environment.from_string((files("collegium.reports") / TEMPLATE).read_text(encoding="utf-8"))
    seconds, peak_bytes = totals(summary)
    columns = [*summary.domains, "mean"]
    return template.render(
        summary=summary,
        headline=headline(summary),
        facts=_facts(summary),
        tables=[table for labels in ("union", "told") if (table := _accuracy_rows(summary, labels))["rows"]],
        perplexities=[
            (method, [(found.get(domain), method in lowest_methods(summary, domain)) for domain in columns])
            for method, found in summary.perplexity.items()
        ],
        accuracy_panels=[(panel.title, Markup(panel.svg)) for panel in accuracy_panels(summary)],
        routing_panels=[(panel.title, Markup(panel.svg)) for panel in routing_panels(summary)],
        pool_figure=None if summary.pool_map is None else pool_figure(summary.pool_map),
        owners=[_owner_row(summary, name, owner) for name, owner in summary.owners.items()],
        releases=[
            {
                "owner": name,
                "bytes": summary.released_bytes.get(name),
                "entries": summary.ledger.get(name, []),
            }
            for name in dict.fromkeys([*summary.ledger, *summary.released_bytes])
        ],
        nothing=NOTHING,
        notes=_notes(summary),
        flags=summary.unification.flags if summary.unification else [],
        total_seconds=seconds,
        peak_bytes=peak_bytes,
        settings=escape(clean(_yaml(summary.settings), keep_lines=True)),
        command=_command(summary),
    )


def cleaned(value: Any) -> Any:
    """What a template prints for a value (`finalize`): texts without control characters."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _facts(summary: RunSummary) -> list[str]:
    """The line under the title."""
    facts = []
    if summary.owners:
        facts.append(f"{len(summary.owners)} owner{'s' if len(summary.owners) > 1 else ''}")
    if summary.task:
        facts.append(summary.task)
    if summary.random_seed is not None:
        facts.append(f"random seed {summary.random_seed}")
    return facts


def _accuracy_rows(summary: RunSummary, labels: str) -> dict[str, Any]:
    """One table: cells hold the value, its interval if examples were counted, and whether it is best."""
    columns = [*summary.domains, "mean"]
    best = {domain: best_methods(summary, labels, domain) for domain in columns}
    rows = []
    for method in summary.accuracy:
        by_domain = summary.by_domain(method, labels)
        if not by_domain:
            continue
        cells = []
        for domain in columns:
            value = summary.mean(method, labels) if domain == "mean" else by_domain.get(domain)
            found = interval(summary, method, labels, domain)
            between = f"{percent(found.low)}–{percent(found.high)}" if found else ""
            cells.append({"value": percent(value), "interval": between, "best": method in best[domain]})
        rows.append({"method": method, "cells": cells})
    return {"labels": labels, "domains": summary.domains, "rows": rows}


def _owner_row(summary: RunSummary, name: str, owner: Owner) -> dict[str, Any]:
    if owner.labels is None:
        labels = NOTHING
    else:
        labels = ", ".join(clean(label) for label in owner.labels)
        if owner.labels_published is False:
            labels += " (kept out of the charter)"
    data = owner.data
    if isinstance(data, dict):
        data = ", ".join(f"{split}: {source}" for split, source in data.items())
    return {
        "name": name,
        "data": NOTHING if data is None else str(data),
        "prompt": owner.prompt or NOTHING,
        "labels": labels,
        "examples": summary.examples.get(name, NOTHING),
    }


def _notes(summary: RunSummary) -> list[str]:
    """How the experts were unified, one plain sentence each."""
    unification = summary.unification
    if unification is None:
        return []
    notes = []
    if unification.router_init:
        notes.append(f"The router started from “{unification.router_init}” vectors.")
    if unification.temperature is not None:
        values = unification.temperature if isinstance(unification.temperature, list) else [unification.temperature]
        notes.append(f"The router’s temperature is {', '.join(f'{value:g}' for value in values)}.")
    if unification.held_out_proxies is not None:
        notes.append(f"{unification.held_out_proxies} proxies were held out to decide what to keep.")
    notes += _joint_tuning_note(unification.joint_tuning) + _fallback_note(unification.fallback)
    return notes


def _joint_tuning_note(tuning: JointTuning | None) -> list[str]:
    if tuning is None or tuning.kept is None:
        return []
    outcome = "was kept" if tuning.kept else "was not kept"
    if tuning.accuracy_before is None or tuning.accuracy_after is None:
        return [f"Joint tuning {outcome}."]
    before, after = percent(tuning.accuracy_before), percent(tuning.accuracy_after)
    return [f"Joint tuning {outcome}: accuracy on held-out proxies {before} % before, {after} % after."]


def _fallback_note(fallback: Fallback | None) -> list[str]:
    if fallback is None:
        return []
    notes = []
    if fallback.enabled is not None:
        state = "is one more expert" if fallback.enabled else "is not among the experts"
        notes.append(f"The seed model’s own feed-forward layers: the fallback {state}.")
    if fallback.pool_agreement_without is not None or fallback.pool_agreement_with is not None:
        notes.append(
            "On items of the public pool the unified model gives the seed model’s answer in "
            f"{percent(fallback.pool_agreement_without)} % of cases without the fallback and in "
            f"{percent(fallback.pool_agreement_with)} % with it."
        )
    return notes


def _yaml(settings: dict[str, Any]) -> str:
    """The recipe as YAML; YAML writes control characters as escapes itself."""
    if not settings:
        return ""
    try:
        return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=88)
    except RecursionError:
        raise ArtifactError("The settings of the summary are nested too deeply.", do="run the recipe again") from None


def _command(summary: RunSummary) -> str:
    """The command that repeats the run from the settings on the page, with the same number of threads."""
    threads = summary.created_with.get("threads")
    prefix = f"OMP_NUM_THREADS={shlex.quote(str(threads))} " if isinstance(threads, int) else ""
    return f"{prefix}collegium run recipe.yaml"
