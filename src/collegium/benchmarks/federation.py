"""Cells that are federations, as of `collegium federate`; what is judged are clients.

Features are shared by all cells, and a cell that was begun with other settings or versions begins anew:

    OUT/work/                   features of common experts, which all cells share
    OUT/…/VARIANT/cell.json     settings and versions with which the run was begun; other ones begin anew
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from collegium.benchmarks.kind import Column, Found, Kind, Outcome
from collegium.core.artifacts import canonical_json, sha256_of, write_file
from collegium.federated.recipe import FederatedRecipe
from collegium.flow.federate import METRICS, RESULT, federate
from collegium.flow.round_metrics import RoundMetrics
from collegium.flow.stages import run_stage, stage_figures
from collegium.flow.summary import created_with
from collegium.reports.federated_curves import Curve, Use, accuracy_figure, use_figure

BEGUN = "cell.json"
DIGITS = 6  # of the share that a client got right: records are read by people, too
# Keys that say who holds which examples.
JUDGED_BY = ("data", "domains", "columns", "limit", "partition", "held_out_clients", "concept_groups", "random_seed")


class Federation(Kind):
    """Runs of `FederatedRecipe`."""

    title = "clients, %"
    unit = "judging clients"
    judged = "accuracy"
    also: ClassVar = {"with_prior": "with its batch"}
    validation: ClassVar = {"evaluation.clients": "validation"}

    def run(self, recipe: FederatedRecipe, folder: Path, out: Path) -> None:
        settings = recipe.model_dump(mode="json")
        if not _goes_on(folder, settings):
            if (folder / BEGUN).is_file():
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)
            written = {"settings": settings, "created_with": created_with()}
            write_file(folder / BEGUN, json.dumps(written).encode())
        run_stage(folder, "rounds", folder / "checkpoint", lambda: federate(recipe, folder, shared=out / "work"))

    def read(self, folder: Path, others: bool) -> Outcome:
        return _outcome(_begun(folder), json.loads((folder / RESULT).read_bytes()), folder)

    def columns(self, keys: Sequence[str]) -> list[Column]:
        columns = [
            Column("mean of clients", "accuracy"),
            Column("worst tenth", "worst_tenth"),
            Column("newcomers", "newcomers"),
            Column("all examples", "global_accuracy"),
            Column(self.also["with_prior"], "with_prior"),
            Column("told its shares", "with_true_prior"),
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


def _outcome(begun: Outcome, result: dict[str, Any], folder: Path) -> Outcome:
    values = {
        "accuracy": 100 * result["accuracy"],
        "worst_tenth": 100 * worst_tenth(result["by_client"]),
        "global_accuracy": 100 * result["global_accuracy"],
        "with_prior": 100 * result["accuracy_with_prior"],
        "with_true_prior": 100 * result["accuracy_with_true_prior"],
    }
    if "accuracy_of_newcomers" in result:
        values["newcomers"] = 100 * result["accuracy_of_newcomers"]
    if len(result["utilisation"]) > 1:
        values["most_used"] = 100 * max(result["utilisation"])
        values["experts"] = effective_number(result["utilisation"])
    values |= {key: result[key] / 1e6 for key in ("bytes_down", "bytes_up")}
    values["rounds"] = float(begun.settings["rounds"]["rounds"])
    evaluation = begun.settings["evaluation"]
    asked = [begun.settings.get(key) for key in JUDGED_BY]
    asked += [evaluation.get(key) for key in ("clients", "protocol", "own_share")]
    scores, with_prior = ({"": np.round(result[key], DIGITS)} for key in ("by_client", "by_client_with_prior"))
    found = Found(values, scores, sha256_of(canonical_json(asked)), {"with_prior": with_prior})
    return replace(begun, found={"": found}, stages=stage_figures(folder))


def worst_tenth(accuracies: Sequence[float]) -> float:
    """Mean of the lowest tenth, of one client at least."""
    return float(np.mean(sorted(accuracies)[: math.ceil(len(accuracies) / 10)]))


def effective_number(shares: Sequence[float]) -> float:
    """exp of the entropy: K where K experts get the same share, 1 where one gets all."""
    return math.exp(-sum(share * math.log(share) for share in shares if share > 0))


def _by_round(lines: Sequence[dict[str, Any]], key: str) -> dict[int, Any]:
    return {line["server_round"]: line[key] for line in lines if key in line}


def _begun(folder: Path) -> Outcome:
    """Settings and versions with which the run in `folder` was begun."""
    return Outcome(found={}, **json.loads((folder / BEGUN).read_bytes()), stages={})


def _goes_on(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether a run was begun with exactly these settings, as its checkpoint asks, and with the versions of now."""
    try:
        begun = _begun(folder)
        return begun.settings == settings and begun.same_versions()
    except (OSError, ValueError, KeyError, TypeError):
        return False
