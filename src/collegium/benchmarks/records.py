"""A suite's records: `rows.jsonl`, a line for each cell and method, with all that its tables are made of.

They are small, hold no model and no text (of the test examples one digest, of all together), and stand for the run
folders: a suite reads them beside these, so that tables can be made, and a suite continued, where the folders are not.

Settings and stages stand in the first record of a cell: of the settings all in the first line of the file, after that
what differs from these.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collegium.benchmarks.kind import Found, Outcome
from collegium.benchmarks.statistics import Scores
from collegium.core.errors import DataError

Key = tuple[str, str, int]  # case, variant (of a candidate with its choice), random seed
Record = dict[str, Any]


def records_of(
    suite: str, key: Key, outcome: Outcome, settings: Mapping[str, Any], chosen: Mapping[str, Any], first: Record | None
) -> list[Record]:
    """A record of each method of a cell.

    Args:
        settings: of the cell's recipe as they are called now; those of `outcome` may lack keys that are new.
        chosen: values of the keys that were tuned.
        first: record of the suite, None for the first itself.
    """
    case, variant, seed = key
    common = {} if first is None else first["settings"]
    differing = {name: value for name, value in settings.items() if first is None or value != common[name]}
    stages = outcome.stages.values()
    return [
        {
            "benchmark": suite,
            "method": f"{variant}/{method}" if method else variant,
            "case": {"case": case, "variant": variant, "chosen": dict(chosen)},
            "random_seed": seed,
            "settings": {} if number else differing,
            "threads": outcome.created_with["threads"],
            "seconds": [sum(stage["seconds"] for stage in stages)],
            "peak_bytes": max(stage["peak_bytes"] for stage in stages),
            "stages": {} if number else outcome.stages,
            "metrics": found.values,
            "asked": found.asked,
            "scores": _written(found.scores),
            "also": {key: _written(scores) for key, scores in found.also.items()},
            "versions": outcome.created_with,
        }
        for number, (method, found) in enumerate(outcome.found.items())
    ]


def read_records(path: Path) -> dict[Key, Outcome]:
    """The cells of `rows.jsonl`; none where there is no such file.

    Raises:
        DataError: a line that is no record.
    """
    cells: dict[Key, Outcome] = {}
    common: dict[str, Any] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines() if path.is_file() else [], start=1):
        try:
            record = json.loads(line)
            case = record["case"]
            key = case["case"], case["variant"], record["random_seed"]
            common = common or record["settings"]
            if key not in cells:
                cells[key] = Outcome({}, {**common, **record["settings"]}, record["versions"], record["stages"])
            method = record["method"].removeprefix(case["variant"]).removeprefix("/")
            also = {name: _read(written) for name, written in record["also"].items()}
            cells[key].found[method] = Found(record["metrics"], _read(record["scores"]), record["asked"], also)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, line {number}, is no record of a suite.",
                got=f"{type(error).__name__}: {error}",
                expected="what `collegium bench` wrote",
                do="take the file away; run folders beside it are read without it",
            ) from None
    return cells


def _written(scores: Scores) -> dict[str, str | list[float]]:
    """Right answers as 1, wrong ones as 0; shares as they are."""
    return {
        group: "".join("01"[int(one)] for one in own) if own.dtype == bool else own.tolist()
        for group, own in scores.items()
    }


def _read(written: Mapping[str, str | list[float]]) -> Scores:
    return {
        group: np.array([one == "1" for one in own]) if isinstance(own, str) else np.array(own, np.float64)
        for group, own in written.items()
    }
