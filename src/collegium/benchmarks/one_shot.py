"""Cells that are runs of the one-shot flow, as of `collegium run`; what is judged are examples, by domain.

Cells of one seed share their work:

    OUT/[CASE/]seed-0/work/     pools, selections, experts and answers, which all variants of that seed share
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from collegium.benchmarks.kind import Column, Found, Kind, Summary, same_versions
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

    def summary(self, recipe: Recipe, folder: Path) -> Summary | None:
        try:
            found = json.loads((folder / SUMMARY).read_bytes())
            same = found["settings"] == recipe.model_dump(mode="json") and same_versions(found["created_with"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if same else None

    def found(self, folder: Path, summary: Summary, others: bool) -> dict[str, Found]:
        answers = read_answers(folder / "evaluation" / ANSWERS)
        texts = read_artifact(folder / "evaluation", verify=False).inputs["texts"]
        by_method = {}
        for method in summary["accuracy"] if others else [OURS]:
            accuracy = summary["accuracy"][method]
            by_setting = {
                f"{setting} {name}": accuracy[setting][name] for setting in SETTINGS for name in accuracy[setting]
            }
            metrics = {key.replace(" ", ".", 1): value for key, value in by_setting.items()}
            if method == OURS:
                metrics["routing.sequence"] = routed = summary["routing"]["sequence"]
                by_setting |= {} if routed is None else {"routed": routed}
            by_method["" if method == OURS else method] = Found(
                values={key: 100 * value for key, value in by_setting.items()},
                scores={domain: one.union for domain, one in answers[method].items()},
                asked=texts,
                metrics=metrics,
            )
        return by_method

    def columns(self, keys: Sequence[str]) -> list[Column]:
        """Domains, their macro average, and `told`; variants may have fewer owners."""
        domains = [key.removeprefix("union ") for key in keys if key.startswith("union ") and key != "union mean"]
        return [
            *(Column(domain, f"union {domain}") for domain in domains),
            Column("mean", "union mean"),
            Column("told", "told mean"),
            Column("routed", "routed"),
        ]
