"""Cells that are federations, as of `collegium federate`; what is judged are clients that never trained.

Features are shared by all cells, and a cell that was begun with other settings or versions begins anew:

    OUT/work/                   features of common experts, which all cells share
    OUT/…/VARIANT/cell.json     settings and versions with which the run was begun; other ones begin anew
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from collegium.benchmarks.kind import Column, Found, Kind, Summary, same_versions
from collegium.core.artifacts import canonical_json, sha256_of, write_file
from collegium.federated.recipe import FederatedRecipe
from collegium.flow.federate import METRICS, RESULT, federate
from collegium.flow.round_metrics import RoundMetrics
from collegium.flow.stages import run_stage, stage_figures
from collegium.flow.summary import created_with
from collegium.reports.federated_curves import Curve, Use, accuracy_figure, use_figure

BEGUN = "cell.json"
JUDGED_BY = ("data", "columns", "limit", "partition", "held_out_clients", "random_seed")  # who holds which examples


class Federation(Kind):
    """Runs of `FederatedRecipe`."""

    title = "unseen clients, %"
    unit = "judging clients"
    judged = "accuracy"
    validation: ClassVar = {"evaluation.clients": "validation"}

    def run(self, recipe: FederatedRecipe, folder: Path, out: Path) -> None:
        if not _begun_with(recipe, folder):
            if (folder / BEGUN).is_file():
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)
            begun = {"settings": recipe.model_dump(mode="json"), "created_with": created_with()}
            write_file(folder / BEGUN, json.dumps(begun).encode())
        run_stage(folder, "rounds", folder / "checkpoint", lambda: federate(recipe, folder, shared=out / "work"))

    def summary(self, recipe: FederatedRecipe, folder: Path) -> Summary | None:
        begun = _begun_with(recipe, folder)
        if begun is None or not (folder / RESULT).is_file():
            return None
        found = json.loads((folder / RESULT).read_bytes())
        return {**found, "created_with": begun["created_with"], "stages": stage_figures(folder)}

    def found(self, folder: Path, summary: Summary, others: bool) -> dict[str, Found]:
        clients = np.array(summary["by_client"])
        metrics: dict[str, float] = {
            "accuracy": summary["accuracy"],
            "worst_tenth": worst_tenth(summary["by_client"]),
            "global_accuracy": summary["global_accuracy"],
            "with_prior": summary["accuracy_with_prior"],
        }
        values = {key: 100 * value for key, value in metrics.items()}
        if len(summary["utilisation"]) > 1:
            metrics |= {"most_used": max(summary["utilisation"]), "experts": effective_number(summary["utilisation"])}
            values |= {"most_used": 100 * metrics["most_used"], "experts": metrics["experts"]}
        settings = summary["settings"]
        rounds = settings["rounds"]["rounds"]
        sizes = {"bytes_down": summary["bytes_down"], "bytes_up": summary["bytes_up"]}
        values |= {key: value / 1e6 for key, value in sizes.items()} | {"rounds": float(rounds)}
        asked = [settings[key] for key in JUDGED_BY] + [settings["evaluation"]["clients"]]
        metrics |= sizes | {"rounds": rounds}
        return {"": Found(values, {"": clients}, sha256_of(canonical_json(asked)), metrics)}

    def columns(self, keys: Sequence[str]) -> list[Column]:
        columns = [
            Column("mean of clients", "accuracy"),
            Column("worst tenth", "worst_tenth"),
            Column("all examples", "global_accuracy"),
            Column("with its batch", "with_prior"),
            Column("most used expert", "most_used"),
            Column("experts in use", "experts"),
            Column("MB down", "bytes_down"),
            Column("MB up", "bytes_up"),
            Column("rounds", "rounds", digits=0),
        ]
        return [column for column in columns if column.key in keys]

    def figures(self, title: str, folders: Mapping[str, Mapping[int, Path]]) -> dict[str, Figure]:
        """Accuracy by round, and the use of the experts of those variants that have some."""
        curves: dict[str, list[Curve]] = {}
        uses: dict[str, Mapping[int, Use]] = {}
        for variant, by_seed in folders.items():
            lines = {seed: RoundMetrics(folder / METRICS).read() for seed, folder in by_seed.items()}
            curves[variant] = [_by_round(own, "accuracy") for own in lines.values()]
            shares = {seed: _by_round(own, "utilisation") for seed, own in lines.items()}
            if max(len(share) for use in shares.values() for share in use.values()) > 1:
                uses[variant] = shares
        figures = {"accuracy": accuracy_figure(curves, title)}
        return figures | ({"experts": use_figure(uses, title)} if uses else {})


def worst_tenth(accuracies: Sequence[float]) -> float:
    """Mean of the lowest tenth, of one client at least."""
    return float(np.mean(sorted(accuracies)[: math.ceil(len(accuracies) / 10)]))


def effective_number(shares: Sequence[float]) -> float:
    """exp of the entropy: K where K experts get the same share, 1 where one gets all."""
    return math.exp(-sum(share * math.log(share) for share in shares if share > 0))


def _by_round(lines: Sequence[dict[str, Any]], key: str) -> dict[int, Any]:
    return {line["server_round"]: line[key] for line in lines if key in line}


def _begun_with(recipe: FederatedRecipe, folder: Path) -> Summary | None:
    """What the run in `folder` was begun with, if these are the settings and versions of now."""
    try:
        begun = json.loads((folder / BEGUN).read_bytes())
        same = begun["settings"] == recipe.model_dump(mode="json") and same_versions(begun["created_with"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return begun if same else None
