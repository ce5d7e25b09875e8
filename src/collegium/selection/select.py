"""Stage 1 of MetaMoE on an owner's machine: which items of the public pool become the owner's proxies."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Float64

from collegium.core.errors import InputError
from collegium.core.recipe import SelectionSettings
from collegium.core.shapes import Embeddings, Indices
from collegium.selection.baselines import select_random, select_similarity
from collegium.selection.dpp import Selection, hash_order, select_dpp
from collegium.selection.facility_location import select_facility_location
from collegium.selection.k_centre import select_k_centre
from collegium.selection.k_dpp import select_k_dpp
from collegium.selection.relevance import log_relevance


def select_proxies(
    pool_embeddings: Embeddings,
    content_hashes: list[str],
    private_embeddings: Float[np.ndarray, "_ dim"],
    settings: SelectionSettings,
    random_seed: int,
) -> Selection:
    """Select `settings.size` proxies by `settings.method`.

    Items are told apart by their content hash: of several rows with one hash only the first can be picked.
    Otherwise neither the order of the pool nor that of the private rows changes which items are picked.

    Args:
        pool_embeddings: unit-norm seed embeddings of the pool, in memory or `np.memmap`.
        content_hashes: one for each row of the pool.
        private_embeddings: unit-norm seed embeddings of the owner's training rows.

    Raises:
        InputError: a row that cannot be used (it is named), no private row, or lengths that differ.
    """
    if len(content_hashes) != len(pool_embeddings):
        raise InputError(
            "The pool has another number of content hashes than of embeddings.",
            got=len(content_hashes),
            expected=len(pool_embeddings),
            do="build the pool again",
        )
    by_hash = np.argsort(hash_order(len(content_hashes), content_hashes))
    repeated = np.zeros(len(content_hashes), bool)
    repeated[by_hash[1:]] = [content_hashes[a] == content_hashes[b] for a, b in pairwise(by_hash)]
    return METHODS[settings.method](
        _Question(pool_embeddings, content_hashes, by_hash, repeated, private_embeddings, settings, random_seed)
    )


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

    def log_relevance(self) -> Float64[np.ndarray, " items"]:
        relevance = log_relevance(
            self.pool_embeddings, self.private_embeddings, self.settings.relevance, self.random_seed
        )
        return np.where(self.repeated, -np.inf, relevance)


def _dpp(question: _Question) -> Selection:
    settings = question.settings
    return select_dpp(
        question.pool_embeddings,
        question.log_relevance(),
        settings.size,
        settings.ridge,
        question.content_hashes,
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
