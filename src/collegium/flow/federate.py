"""A federation on one machine: data are shared out among made-up clients, who train in rounds, and clients judge.

    examples → features of the common expert → partition → rounds → metrics.jsonl, federation.json

Clients that judge have never trained, or judge by examples that they hold back; the labels of these count right answers
and do nothing else. A killed run goes on after its last round.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collegium.core.artifacts import write_file
from collegium.core.progress import draws_bars, say
from collegium.data.partition import describe_partition
from collegium.federated.client_state import ClientStates
from collegium.federated.make_algorithm import make_algorithm
from collegium.federated.recipe import FederatedRecipe
from collegium.federated.rounds import RoundReport, run_rounds
from collegium.flow.collapse import CollapseAlarm
from collegium.flow.engines import ENGINES, STATES
from collegium.flow.event_files import event_files
from collegium.flow.gather_clients import gather_clients
from collegium.flow.judging import judge_federation
from collegium.flow.round_metrics import RoundMetrics
from collegium.privacy.federated_ledger import federated_ledger

METRICS, RESULT = "metrics.jsonl", "federation.json"
AVERAGED = (  # over the last evaluations
    *("accuracy", "accuracy_with_prior", "accuracy_with_true_prior", "accuracy_of_newcomers", "global_accuracy"),
    *("by_client", "by_client_with_prior", "utilisation"),
)


def federate(recipe: FederatedRecipe, folder: Path, engine: str = "in-process", shared: Path | None = None) -> Path:
    """Run all rounds in `folder`; the path of `federation.json`.

    Args:
        engine: a name of `ENGINES`; the result is the same, and a run may go on under another one.
        shared: where other runs find features of the same examples (in-process alone); None = in the folder itself.

    Raises:
        RecipeError: data without labels, or pictures for experts that do not read them.
        RunError: nobody answered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    federation = gather_clients(recipe, folder, shared)
    server = make_algorithm(federation.world(recipe.random_seed), recipe.algorithm)
    lines, collapse = RoundMetrics(folder / METRICS), CollapseAlarm(server)
    seen: dict[str, Any] = {}  # by the last evaluation

    def after(report: RoundReport) -> str:
        last = report.server_round == recipe.rounds.rounds
        due = last or report.server_round % recipe.evaluation.every == 0
        found = judge_federation(server, federation, ClientStates(folder / STATES)) if due else {}
        collapse.look(report.server_round, found.get("utilisation"))
        line = {**vars(report), **found}
        lines.add(line)
        record(line)
        seen.update(found)
        told = _progress(report, seen)
        if due and not draws_bars():
            say(told)
        return told

    identity = [recipe.model_dump(mode="json"), federation.content_hash]
    with event_files(folder) as record:
        ENGINES[engine](
            recipe,
            folder,
            federation,
            lambda engine: run_rounds(server, engine, recipe.rounds, identity, recipe.random_seed, folder, after),
        )
    rounds = lines.read()
    judged = [line for line in rounds if "accuracy" in line][-recipe.evaluation.averaged :]
    averages = (key for key in AVERAGED if key in judged[0])
    result = {
        "project": recipe.project,
        "algorithm": recipe.algorithm.name,
        "random_seed": recipe.random_seed,
        **{key: np.mean([line[key] for line in judged], axis=0).tolist() for key in averages},
        "averaged_rounds": [line["server_round"] for line in judged],
        "bytes_down": sum(line["bytes_down"] for line in rounds),
        "bytes_up": sum(line["bytes_up"] for line in rounds),
        "clients": {
            "training": len(federation.training),
            "judging": len(federation.judges),
            **describe_partition(federation.rows, federation.data.labels),
        },
        "ledger": [entry.model_dump(mode="json") for entry in federated_ledger(server.releases())],
        "settings": recipe.model_dump(mode="json"),
    }
    write_file(folder / RESULT, json.dumps(result, indent=1).encode())
    return folder / RESULT


def _progress(report: RoundReport, last: Mapping[str, Any]) -> str:
    """A line about a round: who answered, and what the last evaluation found."""
    parts = [f"round {report.server_round}: {report.answered} of {report.asked} clients answered"]
    if last:
        parts.append(f"accuracy {last['accuracy']:.3f}")
        if len(last["utilisation"]) > 1:
            parts.append(f"the most used of {len(last['utilisation'])} experts has {max(last['utilisation']):.0%}")
    return ", ".join(parts)
