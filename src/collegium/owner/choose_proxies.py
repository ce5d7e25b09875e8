"""An owner's first stage: which items of the public pool become its proxies. It releases nothing.

The result stays in the owner's store under a name that follows from everything it depends on, so that `contribute`
finds what `select` chose, and a killed command what it had finished: the whole selection, or some of its shards.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from safetensors.numpy import load_file, save_file

from collegium.core.artifacts import canonical_json, read_artifact, sha256_of, writing
from collegium.core.errors import ArtifactError, InputError
from collegium.core.random_streams import stream_seed
from collegium.core.recipe import OwnerRecipe
from collegium.data.examples import Examples
from collegium.data.items import as_json
from collegium.models.encoder import check_modality, embed_texts
from collegium.models.seed_model import SeedModel
from collegium.owner.charter import Charter
from collegium.owner.overlap import find_overlap, refuse_overlap
from collegium.privacy.release_store import ReleaseStore
from collegium.selection.pool import Pool
from collegium.selection.select import select_one_shard, select_proxies
from collegium.selection.shard_processes import shard_path
from collegium.selection.shards import read_shard

KIND = "selection"
PICKS = "picks.safetensors"


@dataclass(frozen=True)
class ChosenProxies:
    """The proxies of an owner: rows of the pool in the order of the picks."""

    rows: list[int]
    log_det: float
    shortfall: str | None


def choose_proxies(
    charter: Charter,
    recipe: OwnerRecipe,
    pool: Pool,
    seed: SeedModel,
    private: Examples,
    store: ReleaseStore,
    allow_overlap: bool = False,
    processes: int | None = None,
) -> ChosenProxies:
    """Select the owner's proxies and keep them in its store; at once if they are there, from the same inputs.

    Args:
        pool: verified, as the seed model is, against the charter.
        processes: most that select from shards at a time; changes the time alone.

    Raises:
        ReleaseRefused: pool records like private ones (without `allow_overlap`).
    """
    question = _question(charter, recipe, private, allow_overlap)
    path, shards = _places(store, question)
    found = _finished(path, question, len(pool))
    if found is not None:
        return found
    embeddings = _embed_apart(pool, seed, recipe, private, allow_overlap)
    settings, own_seed = charter.terms.selection, _own_seed(charter, recipe)
    selection = select_proxies(pool.embeddings, pool.hashes, embeddings, settings, own_seed, processes, shards)
    facts = {"method": settings.method, "size": settings.size, "shortfall": selection.shortfall}
    shutil.rmtree(path, ignore_errors=True)  # what lies there under our name is damaged
    with writing(path, KIND, {"question": question, "pool": pool.artifact.sha256}, facts) as folder:
        picks = {"rows": selection.indices, "gains": selection.gains, "log_det": np.array([selection.log_det])}
        save_file(picks, folder / PICKS)
    shutil.rmtree(shards, ignore_errors=True)
    return ChosenProxies(selection.indices.tolist(), selection.log_det, selection.shortfall)


def choose_shard(
    charter: Charter,
    recipe: OwnerRecipe,
    pool: Pool,
    seed: SeedModel,
    private: Examples,
    store: ReleaseStore,
    shard: int,
    allow_overlap: bool = False,
) -> Path:
    """Select from one shard (counted from 0) and keep its picks in the store, where `choose_proxies` merges them.

    Returns:
        The shard's artifact; of the whole selection, where that is there already.

    Raises:
        InputError: the charter has no such shard.
        ReleaseRefused: see `choose_proxies`.
    """
    settings = charter.terms.selection
    if settings.shards < 2 or not 0 <= shard < settings.shards:
        raise InputError(
            "The charter has no such shard.",
            got=shard + 1,
            expected=f"1 to {settings.shards}" if settings.shards > 1 else "a selection of one piece, without shards",
            do="the number of shards changes the result, so it is agreed on: selection.shards of the charter",
        )
    question = _question(charter, recipe, private, allow_overlap)
    path, shards = _places(store, question)
    if _finished(path, question, len(pool)) is not None:
        return path
    kept = shard_path(shards, shard, settings.shards)
    if not _is_kept(kept):
        embeddings = _embed_apart(pool, seed, recipe, private, allow_overlap)
        own_seed = _own_seed(charter, recipe)
        select_one_shard(pool.embeddings, pool.hashes, embeddings, settings, own_seed, shard, shards)
    return kept


def _question(charter: Charter, recipe: OwnerRecipe, private: Examples, allow_overlap: bool) -> str:
    """Names everything that the selection depends on. Hashes of private data never leave the store."""
    terms = charter.terms
    return sha256_of(
        canonical_json(
            [
                terms.seed_model,
                terms.max_length,
                terms.pool,
                terms.selection.model_dump(mode="json"),
                _own_seed(charter, recipe),
                recipe.privacy.overlap_similarity,
                allow_overlap,
                [as_json(item) for item in private.texts],
            ]
        )
    )


def _places(store: ReleaseStore, question: str) -> tuple[Path, Path]:
    """Where the selection is kept, and where its shards are until they are merged."""
    name = f"selection-{question[:16]}"
    work = store.work_folder()
    return work / name, work / f"{name}-shards"


def _own_seed(charter: Charter, recipe: OwnerRecipe) -> int:
    return stream_seed(charter.terms.random_seed, "owner", recipe.name)


def _embed_apart(
    pool: Pool, seed: SeedModel, recipe: OwnerRecipe, private: Examples, allow_overlap: bool
) -> Float[np.ndarray, "items dim"]:
    """Embeddings of the private texts, once it is sure that the pool holds none of them."""
    check_modality(seed, private.texts, f"owner {recipe.name}")
    embeddings = embed_texts(seed, private.texts)
    if not allow_overlap:
        overlap = find_overlap(pool, private.texts, embeddings, recipe.privacy.overlap_similarity)
        if overlap:
            refuse_overlap(pool, private.texts, overlap)
    return embeddings


def _finished(path: Path, question: str, num_items: int) -> ChosenProxies | None:
    try:
        artifact = read_artifact(path, KIND)
        picks = load_file(artifact.path / PICKS)
        rows, log_det = picks["rows"].tolist(), float(picks["log_det"][0])
        shortfall = artifact.settings["shortfall"]
    except (ArtifactError, KeyError, OSError):
        return None
    is_whole = artifact.inputs["question"] == question and all(0 <= row < num_items for row in rows)
    return ChosenProxies(rows, log_det, shortfall) if is_whole else None


def _is_kept(path: Path) -> bool:
    try:
        read_shard(path)
    except ArtifactError:
        return False
    return True
