"""Selection from a pool that many machines share: greedy on each shard, then greedy on the union of their picks.

GreeDi (Mirzasoleiman, Karbasi, Sarkar, Krause 2013, "Distributed submodular maximization", NeurIPS): the better, by
log det, of the greedy on the union and the best shard's own picks. A shard is a block of the pool in the order of the
content hashes, thus a random one that is the same on every machine. Any scheduler can run `select_shard`; what it
returns is kept as an artifact and carries all that `merge_selections` needs, so that the merge reads no pool.

The relevance is the whole pool's in every shard: `log_relevance` gives the same numbers wherever it is computed (its
folds and negatives follow from the content), and a digest of them refuses shards of different questions.

Deviation: log det is not monotone where a residual is below 1, so that GreeDi's bound is no promise here; the
loss against the exact greedy is measured by `benchmarks/selection_shards.py`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float64
from safetensors.numpy import load_file, save_file

from collegium.core.artifacts import Artifact, canonical_json, read_artifact, writing
from collegium.core.errors import ArtifactError, InputError
from collegium.core.shapes import Embeddings, Picks, Scores
from collegium.selection.candidates import Rows, Weights, shortfall
from collegium.selection.dpp import Selection, select_dpp
from collegium.selection.inputs import check_lengths, hash_order

KIND = "selection-shard"
PICKS, HASHES = "picks.safetensors", "hashes.json"


@dataclass(frozen=True)
class Question:
    """What all shards of one selection have in common.

    Attributes:
        digest: of the relevance of the whole pool, its hashes and the settings below.
        num_items: of the whole pool.
        dim: of its features.
    """

    digest: str
    num_shards: int
    size: int
    ridge: float
    num_items: int
    dim: int


@dataclass(frozen=True)
class ShardSelection:
    """The picks of one shard, in their order, with what the merge needs.

    Attributes:
        shard: counted from 0.
        rows: of the whole pool.
        features, log_relevance, content_hashes: of the picks.
    """

    question: Question
    shard: int
    rows: Picks
    features: Float[np.ndarray, "picks dim"]
    log_relevance: Float64[np.ndarray, " picks"]
    gains: Float64[np.ndarray, " picks"]
    log_det: float
    content_hashes: list[str] | None


def ask(
    features: Embeddings,
    log_relevance: Scores,
    size: int,
    ridge: float,
    content_hashes: list[str] | None,
    num_shards: int,
) -> Question:
    """The question that all shards answer.

    Raises:
        InputError: fewer than one shard, or lengths that differ.
    """
    if num_shards < 1:
        raise InputError("The pool cannot be divided so.", got=f"{num_shards} shards", expected="at least 1")
    check_lengths(len(features), log_relevance, content_hashes)
    settings = [num_shards, size, ridge, *features.shape, str(features.dtype)]
    digest = hashlib.sha256(canonical_json([*settings, content_hashes]))
    digest.update(np.asarray(log_relevance, "<f8").tobytes())
    return Question(digest.hexdigest(), num_shards, size, ridge, *features.shape)


def select_shard(
    features: Embeddings,
    log_relevance: Scores,
    size: int,
    ridge: float,
    content_hashes: list[str] | None,
    shard: int,
    num_shards: int,
    threads: int = 1,
) -> ShardSelection:
    """The picks of one shard, by `select_dpp`; time and memory are those of a pool of n / num_shards items.

    Args:
        features, log_relevance, content_hashes: of the whole pool; only the shard's features are read.
        size, ridge, threads: see `select_dpp`.
        shard: counted from 0.

    Raises:
        InputError: see `select_dpp`; no such shard.
    """
    question = ask(features, log_relevance, size, ridge, content_hashes, num_shards)
    rows = shard_rows(len(features), content_hashes, shard, num_shards)
    hashes = content_hashes and [content_hashes[row] for row in rows]
    return answer(question, shard, rows, features, np.asarray(log_relevance, np.float64)[rows], hashes, threads)


def merge_selections(shards: Sequence[ShardSelection], threads: int = 1) -> Selection:
    """The second round: the better of the greedy on the union of all picks and the best shard's own.

    Better is: more items, then the larger log det. Rows are those of the whole pool.

    Raises:
        InputError: not every shard of one question, each once.
    """
    shards = sorted(shards, key=lambda shard: shard.shard)
    questions = {shard.question.digest for shard in shards}
    if len(questions) != 1:
        raise InputError(
            "These shards cannot be merged.",
            got=f"answers to {len(questions)} different questions",
            expected="shards of one pool, private data and settings",
        )
    question = shards[0].question
    if [shard.shard for shard in shards] != list(range(question.num_shards)):
        raise InputError(
            "These shards cannot be merged: each is needed once.",
            got=", ".join(str(shard.shard + 1) for shard in shards),
            expected=f"1 to {question.num_shards}",
        )
    known = shards[0].content_hashes is not None
    rows = np.concatenate([shard.rows for shard in shards])
    union = select_dpp(
        np.concatenate([shard.features for shard in shards]),
        np.concatenate([shard.log_relevance for shard in shards]),
        question.size,
        question.ridge,
        [value for shard in shards for value in shard.content_hashes or []] if known else None,
        threads,
    )
    found, log_det, picks, gains = max(
        (len(union.indices), union.log_det, rows[union.indices], union.gains),
        *((len(shard.rows), shard.log_det, shard.rows, shard.gains) for shard in shards),
        key=lambda candidate: candidate[:2],  # the union where they are equal: it stands first
    )
    everything = found == len(rows)  # then no shard left an item behind
    missing = shortfall(found, question.size, question.num_items) if everything else union.shortfall
    return Selection(picks, gains, log_det, missing)


def shard_rows(num_items: int, content_hashes: list[str] | None, shard: int, num_shards: int) -> Rows:
    """Rows of one shard: a block of the order of the hashes (of the rows where there are none).

    Raises:
        InputError: no such shard.
    """
    if not 0 <= shard < num_shards:
        raise InputError("There is no such shard.", got=shard + 1, expected=f"1 to {num_shards}")
    start, stop = (num_items * bound // num_shards for bound in (shard, shard + 1))
    return np.argsort(hash_order(num_items, content_hashes))[start:stop]


def answer(
    question: Question,
    shard: int,
    rows: Rows,
    features: Embeddings,
    log_relevance: Weights,
    content_hashes: list[str] | None,
    threads: int,
) -> ShardSelection:
    """The picks among some rows.

    Args:
        features: of the whole pool.
        log_relevance, content_hashes: of `rows`.

    Raises:
        InputError: see `select_dpp`.
    """
    is_block = len(rows) > 0 and bool((np.diff(rows) == 1).all())  # as in every pool artifact: nothing is copied
    part = features[rows[0] : rows[-1] + 1] if is_block else features[rows]
    try:
        selection = select_dpp(part, log_relevance, question.size, question.ridge, content_hashes, threads)
    except InputError as error:
        first = f", whose first row is row {rows[0]} of the pool" if len(rows) else ""
        raise InputError(
            f"In shard {shard + 1}/{question.num_shards}{first}: {error.what}",
            got=error.got,
            expected=error.expected,
            do=error.do,
        ) from error
    picks = selection.indices
    return ShardSelection(
        question,
        shard,
        rows[picks],
        np.array(part[picks]),
        np.asarray(log_relevance, np.float64)[picks],
        selection.gains,
        selection.log_det,
        content_hashes and [content_hashes[pick] for pick in picks],
    )


def write_shard(path: Path, shard: ShardSelection) -> None:
    """Keep a shard as the artifact at `path`; nothing half-written, whatever happens."""
    question = vars(shard.question)
    with writing(path, KIND, {"question": shard.question.digest}, question | {"shard": shard.shard}) as folder:
        arrays = {
            "rows": shard.rows.astype(np.int64),
            "features": shard.features,
            "log_relevance": shard.log_relevance,
            "gains": shard.gains,
            "log_det": np.array([shard.log_det]),
        }
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / PICKS)
        (folder / HASHES).write_bytes(canonical_json(shard.content_hashes))


def read_shard(path: Path) -> ShardSelection:
    """Read a kept shard.

    Raises:
        ArtifactError: no intact shard at `path`.
    """
    artifact = read_artifact(path, KIND)
    try:
        return _parse(artifact)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"The shard {path} is malformed.", got=str(error), do="select from it again") from None


def _parse(artifact: Artifact) -> ShardSelection:
    settings = dict(artifact.settings)
    shard = settings.pop("shard")
    arrays = load_file(artifact.path / PICKS)
    log_det = float(arrays.pop("log_det")[0])
    hashes = json.loads((artifact.path / HASHES).read_bytes())
    return ShardSelection(Question(**settings), shard, log_det=log_det, content_hashes=hashes, **arrays)
