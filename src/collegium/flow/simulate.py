"""The whole flow on one machine: all owners are simulated, with the same functions that each would run alone.

    pool → charter → contribute (each owner) → unify → evaluate → map, summary, report

Every stage is an artifact of the run folder; a stage whose inputs and settings are unchanged is not run again, and a
killed run goes on where it stopped, with the same result.
"""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from collegium.core.artifacts import canonical_json, sha256_of
from collegium.core.errors import InputError, RecipeError
from collegium.core.recipe import OwnerRecipe, Recipe
from collegium.data.examples import load_splits
from collegium.flow.compare import compare_methods
from collegium.flow.pool_map import map_pool
from collegium.flow.stages import run_stage
from collegium.flow.summary import SUMMARY, write_summary
from collegium.models.seed_model import SeedModel, load_seed_model
from collegium.owner.charter import Charter, write_charter
from collegium.owner.contribute import contribute
from collegium.privacy.release_store import ReleaseStore
from collegium.reports.page import write_report
from collegium.reports.reading import MAP_FOLDER
from collegium.selection.pool import Pool, build_pool
from collegium.unify.unify import unify

Result = TypeVar("Result")


def simulate(recipe: Recipe, folder: Path, work: Path | None = None) -> Path:
    """Run all stages of a simulation recipe in `folder`; the path of the summary.

    Args:
        work: what other runs of the same seed may use again (pools, selections, trained experts, answers), one run at
            a time, and no map of the pool is drawn; None = `work` in the folder itself.

    Raises:
        CollegiumError: see the stages.
        InputError: another run is at work in this folder.
    """
    owners = {name: owner_recipe(recipe, name) for name in recipe.owners}
    folder.mkdir(parents=True, exist_ok=True)
    shared = folder / "work" if work is None else work
    shared.mkdir(parents=True, exist_ok=True)
    shared.chmod(0o700)  # experts, answers and digests of private examples
    with alone(folder), alone(shared):
        _forget_others(folder, recipe)
        seed = load_seed_model(recipe.seed_model, recipe.max_length)

        def stage(name: str, artifact: Path, make: Callable[[], Result]) -> Result:
            return run_stage(folder, name, artifact, make)

        path = folder / "pool" if work is None else work / f"pool-{_pool_name(recipe, seed)}"
        pool = stage("pool", path, lambda: build_pool(path, recipe.pool, seed, recipe.random_seed))
        charter_path = folder / "charter"
        charter = stage("charter", charter_path, lambda: make_charter(charter_path, recipe, seed, pool))
        contributions = {name: folder / "contributions" / name for name in owners}
        for name, owner in owners.items():
            out = contributions[name]
            # Nothing is released to anybody, so that other settings may be tried: one memory a charter.
            store = ReleaseStore(folder / "owners" / name / charter.sha256[:16], work=shared / "owners" / name)
            stage(f"contribute:{name}", out, partial(contribute, charter, owner, pool, seed, out, store))
        paths = list(contributions.values())
        model, evaluation = folder / "model", folder / "evaluation"
        stage("unify", model, lambda: unify(charter, paths, pool, seed, model))
        stage(
            "evaluate",
            evaluation,
            lambda: compare_methods(evaluation, recipe, charter, pool, seed, paths, model, shared / "answers"),
        )
        if work is None:
            stage("map", folder / MAP_FOLDER, lambda: map_pool(folder / MAP_FOLDER, pool, contributions))
        summary = write_summary(folder, recipe, pool)
        write_report(folder)
    return summary


def _forget_others(folder: Path, recipe: Recipe) -> None:
    """A run that was stopped leaves no summary of other settings."""
    try:
        settings = json.loads((folder / SUMMARY).read_bytes())["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if settings != recipe.model_dump(mode="json"):
        (folder / SUMMARY).unlink()


def make_charter(path: Path, recipe: Recipe, seed: SeedModel, pool: Pool) -> Charter:
    """The charter of a recipe; the class names of owners with data are read from their training examples.

    Raises:
        RecipeError: neither labels nor data are given for an owner that publishes its labels.
    """
    labels = {}
    for name, owner in recipe.owners.items():
        if owner.labels is not None:
            labels[name] = owner.labels
        elif owner.data is not None and owner.publish_labels and recipe.task != "causal-text":
            train = load_splits(owner.data, owner.columns, owner.limits, recipe.random_seed, name).train
            labels[name] = train.class_names
    return write_charter(path, recipe, seed, pool, labels)


def owner_recipe(recipe: Recipe, name: str) -> OwnerRecipe:
    """What an owner of a simulation would write itself.

    Raises:
        RecipeError: the owner has no data.
    """
    owner = recipe.owners[name]
    if owner.data is None:
        raise RecipeError(
            f"owners.{name}.data is missing: `collegium run` simulates every owner.",
            do="give the data, or use `collegium charter`, `contribute` and `unify` on separate machines",
        )
    return OwnerRecipe(name=name, data=owner.data, columns=owner.columns, limits=owner.limits, privacy=owner.privacy)


def _pool_name(recipe: Recipe, seed: SeedModel) -> str:
    settings = [recipe.pool.model_dump(mode="json"), recipe.random_seed, seed.fingerprint, seed.max_length]
    return sha256_of(canonical_json(settings))[:16]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder.

    Raises:
        InputError: one is at work there.
    """
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"Another run is at work in {folder}.", do="wait for it, or name another folder with --out"
            ) from None
        yield
