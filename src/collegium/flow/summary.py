"""`summary.json` of a run: figures, settings and hashes in one file, from which the table and the report are made."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from collegium.core.artifacts import read_artifact, write_file
from collegium.core.recipe import Recipe
from collegium.data.sources import short_name
from collegium.flow.compare import RESULTS
from collegium.flow.stages import stage_figures
from collegium.owner.charter import read_charter
from collegium.reports.reading import MAP, MAP_FOLDER
from collegium.selection.pool import Pool
from collegium.unify.unified_folder import FACTS
from collegium.unify.unified_folder import LEDGER as LEDGERS

SUMMARY = "summary.json"
PACKAGES = ("collegium", "torch", "transformers")  # whose versions a run names


def write_summary(folder: Path, recipe: Recipe, pool: Pool) -> Path:
    """Gather the results of a finished run; the path of the file."""
    charter = read_charter(folder / "charter")
    model = read_artifact(folder / "model")
    contributions = {name: read_artifact(folder / "contributions" / name) for name in charter.owners}
    results = json.loads((folder / "evaluation" / RESULTS).read_bytes())
    terms, drawn = charter.terms, folder / MAP_FOLDER / MAP
    summary = {
        "project": recipe.project,
        "random_seed": recipe.random_seed,
        "task": recipe.task,
        "created_with": created_with(),
        "owners": {
            name: {
                "data": short_name(recipe.owners[name].data or ""),
                "prompt": terms.owners[name].prompt,
                "labels": None if recipe.owners[name].columns.choices else terms.owners[name].labels or [],
                "labels_published": terms.owners[name].labels is not None,
            }
            for name in charter.owners
        },
        "pool": {key: pool.artifact.settings[key] for key in ("data", "items", "duplicates_removed")},
        "coverage": json.loads(drawn.read_bytes())["coverage"] if drawn.is_file() else None,
        **results,
        "stages": stage_figures(folder),
        "released_bytes": {
            name: sum(entry["bytes"] for entry in one.files.values()) for name, one in contributions.items()
        },
        "ledger": json.loads((model.path / LEDGERS).read_bytes()),
        "unification": json.loads((model.path / FACTS).read_bytes())["unification"],
        "settings": recipe.model_dump(mode="json"),
        "hashes": {
            "seed_model": terms.seed_model,
            "pool": pool.artifact.sha256,
            "charter": charter.sha256,
            **{f"contribution:{name}": one.sha256 for name, one in contributions.items()},
            "unified": model.sha256,
        },
    }
    write_file(folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False).encode())
    return folder / SUMMARY


def created_with() -> dict[str, str | int]:
    """Versions, and the number of threads, on which figures depend."""
    return {
        **{package: version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
