"""Cells that are runs of the one-shot flow, as of `collegium run`; what is judged are examples, by domain.

Cells of one seed share their work:

    OUT/[CASE/]seed-0/work/     pools, selections, experts and answers, which all variants of that seed share
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from collegium.benchmarks.kind import Column, Found, Kind, Outcome
from collegium.core.artifacts import read_artifact
from collegium.core.recipe import Recipe
from collegium.flow.compare import ANSWERS
from collegium.flow.kept_answers import read_answers
from collegium.flow.simulate import simulate
from collegium.flow.summary import SUMMARY

OURS = "unified"
SETTINGS = ("union", "told")  # all labels of all domains compete; only a domain's own do


class OneShot(Kind):
    """Runs of `Recipe`."""

    title = "union of all labels, %"
    unit = "test examples"
    judged = "union mean"
    validation: ClassVar = {"evaluation.split": "validation"}

    def run(self, recipe: Recipe, folder: Path, out: Path) -> None:
        simulate(recipe, folder, folder.parent / "work")

    def read(self, folder: Path, others: bool) -> Outcome:
        summary = json.loads((folder / SUMMARY).read_bytes())
        answers = read_answers(folder / "evaluation" / ANSWERS)
        texts = read_artifact(folder / "evaluation", verify=False).inputs["texts"]
        found = {}
        for method in summary["accuracy"] if others else [OURS]:
            accuracy = summary["accuracy"][method]
            values = {
                f"{setting} {name}": 100 * accuracy[setting][name] for setting in SETTINGS for name in accuracy[setting]
            }
            if method == OURS and (routed := summary["routing"]["sequence"]) is not None:
                values["routed"] = 100 * routed
            scores = {domain: one.union for domain, one in answers[method].items()}
            found["" if method == OURS else method] = Found(values, scores, asked=texts)
        return Outcome(found, summary["settings"], summary["created_with"], summary["stages"])

    def columns(self, keys: Sequence[str]) -> list[Column]:
        """Domains, their macro average, and `told`; variants may have fewer owners."""
        domains = [key.removeprefix("union ") for key in keys if key.startswith("union ") and key != "union mean"]
        return [
            *(Column(domain, f"union {domain}") for domain in domains),
            Column("mean", "union mean"),
            Column("told", "told mean"),
            Column("routed", "routed"),
        ]
