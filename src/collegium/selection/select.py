"""Stage 1 of MetaMoE on an owner's machine: which items of the public pool become the owner's proxies."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64

from collegium.core.recipe import SelectionSettings
from collegium.core.shapes import Embeddings, Indices
from collegium.selection.baselines import select_random, select_similarity
from collegium.selection.dpp import Selection, select_dpp
from collegium.selection.facility_location import select_facility_location
from collegium.selection.inputs import check_lengths, hash_order
from collegium.selection.k_centre import select_k_centre
from collegium.selection.k_dpp import select_k_dpp
from collegium.selection.relevance import log_relevance
from collegium.selection.shard_processes import select_in_shards, shard_path
from collegium.selection.shards import ShardSelection, select_shard, write_shard


def select_proxies(
    pool_embeddings: Embeddings,
    content_hashes: list[str],
    private_embeddings: Float[np.ndarray, "_ dim"],
    settings: SelectionSettings,
    random_seed: int,
    processes: int | None = None,
    kept: Path | None = None,
) -> Selection:
    """Select `settings.size` proxies by `settings.method`.

    Items are told apart by their content hash: of several rows with one hash only the first can be picked.
    Otherwise neither the order of the pool nor that of the private rows changes which items are picked.

    Args:
        pool_embeddings: unit-norm seed embeddings of the pool, in memory or `np.memmap`.
        content_hashes: one for each row of the pool.
        private_embeddings: unit-norm seed embeddings of the owner's training rows.
        processes: most at a time, where there are several shards; changes the time alone.
        kept: folder of this very question's finished shards, see `select_in_shards`.

    Raises:
        InputError: a row that cannot be used (it is named), no private row, or lengths that differ.
    """
    question = _ask(pool_embeddings, content_hashes, private_embeddings, settings, random_seed, processes, kept)
    return METHODS[settings.method](question)


def select_one_shard(
    pool_embeddings: Embeddings,
    content_hashes: list[str],
    private_embeddings: Float[np.ndarray, "_ dim"],
    settings: SelectionSettings,
    random_seed: int,
    shard: int,
    kept: Path,
) -> ShardSelection:
    """Select from one of the `settings.shards` shards (counted from 0) and keep the result for `select_proxies`.

    Raises:
        InputError: see `select_proxies`; no such shard.
    """
    question = _ask(pool_embeddings, content_hashes, private_embeddings, settings, random_seed, 1, kept)
    found = select_shard(
        pool_embeddings,
        question.log_relevance(),
        settings.size,
        settings.ridge,
        content_hashes,
        shard,
        settings.shards,
        torch.get_num_threads(),
    )
    write_shard(shard_path(kept, shard, settings.shards), found)
    return found


@dataclass(frozen=True)
class _Question:
    """What a method may use to select."""

    pool_embeddings: Embeddings
    content_hashes: list[str]
    by_hash: Indices  # rows in the order of their hashes
    repeated: Bool[np.ndarray, " items"]  # rows whose hash an earlier row has
    private_embeddings: Float[np.ndarray, "_ dim"]
    settings: SelectionSettings
    random_seed: int
    processes: int | None
    kept: Path | None

    def log_relevance(self) -> Float64[np.ndarray, " items"]:
        relevance = log_relevance(
            self.pool_embeddings, self.private_embeddings, self.settings.relevance, self.random_seed
        )
        return np.where(self.repeated, -np.inf, relevance)


def _ask(
    pool_embeddings: Embeddings,
    content_hashes: list[str],
    private_embeddings: Float[np.ndarray, "_ dim"],
    settings: SelectionSettings,
    random_seed: int,
    processes: int | None,
    kept: Path | None,
) -> _Question:
    check_lengths(len(pool_embeddings), None, content_hashes)
    by_hash = np.argsort(hash_order(len(content_hashes), content_hashes))
    repeated = np.zeros(len(content_hashes), bool)
    repeated[by_hash[1:]] = [content_hashes[a] == content_hashes[b] for a, b in pairwise(by_hash)]
    return _Question(
        pool_embeddings, content_hashes, by_hash, repeated, private_embeddings, settings, random_seed, processes, kept
    )


def _dpp(question: _Question) -> Selection:
    settings = question.settings
    if settings.shards > 1:
        return select_in_shards(
            question.pool_embeddings,
            question.log_relevance(),
            settings.size,
            settings.ridge,
            question.content_hashes,
            settings.shards,
            question.processes,
            question.kept,
            torch.get_num_threads(),
        )
    return select_dpp(
        question.pool_embeddings,
        question.log_relevance(),
        settings.size,
        settings.ridge,
        question.content_hashes,
        threads=torch.get_num_threads(),
    )


def _k_dpp(question: _Question) -> Selection:
    settings, hashes = question.settings, question.content_hashes
    return select_k_dpp(
        question.pool_embeddings,
        question.log_relevance(),
        settings.size,
        settings.ridge,
        question.random_seed,
        hashes,
    )


def _facility_location(question: _Question) -> Selection:
    settings, hashes = question.settings, question.content_hashes
    return select_facility_location(
        question.pool_embeddings, question.log_relevance(), settings.size, settings.ridge, hashes
    )


def _k_centre(question: _Question) -> Selection:
    settings, hashes = question.settings, question.content_hashes
    return select_k_centre(question.pool_embeddings, question.log_relevance(), settings.size, settings.ridge, hashes)


def _similarity(question: _Question) -> Selection:
    return select_similarity(question.log_relevance(), question.settings.size, question.content_hashes)


def _random(question: _Question) -> Selection:
    """Drawn among the distinct items in the order of their hashes: the order of the pool does not matter."""
    distinct = question.by_hash[~question.repeated[question.by_hash]]
    drawn = select_random(len(distinct), question.settings.size, question.random_seed)
    return Selection(distinct[drawn.indices], drawn.gains, drawn.log_det, drawn.shortfall)


METHODS: dict[str, Callable[[_Question], Selection]] = {
    "dpp": _dpp,
    "k-dpp": _k_dpp,
    "facility-location": _facility_location,
    "k-centre": _k_centre,
    "similarity": _similarity,
    "random": _random,
}
