"""The public pool: texts or pictures, labels where there are any, content hashes, and the seed's embeddings.

One artifact. Items stand in the order of their content hashes, so the pool does not depend on the order of its
source, "the lowest hash" is the lowest index, and a share of it can be held out by hash. Items lie in an Arrow file
(pictures as PNG) and embeddings in a `.npy`, both memory-mapped: no later stage holds the pool in memory.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float32

from collegium.core.artifacts import Artifact, canonical_json, finished, read_artifact, writing
from collegium.core.errors import ArtifactError, DataError, IncompatibleSeedModel
from collegium.core.progress import progress_bar
from collegium.core.recipe import PoolSettings
from collegium.data.examples import load_texts
from collegium.data.images import Picture
from collegium.data.items import Item, Modality, content_hash, modality_of
from collegium.data.sources import short_name
from collegium.models.encoder import CHUNK, check_modality, embed_texts
from collegium.models.seed_model import SeedModel

UNIT_NORM = 1e-3  # how far from 1 the length of an embedding may be
RECORDS, EMBEDDINGS = "records.arrow", "embeddings.npy"


@dataclass(frozen=True)
class Pool:
    """A pool on disk, memory-mapped.

    Attributes:
        records: columns text (or image), label (null where there is none), hash.
        embeddings: unit-norm rows; [items, dim].
    """

    artifact: Artifact
    records: pa.Table
    embeddings: Float32[np.ndarray, "items dim"]

    def __len__(self) -> int:
        return self.records.num_rows

    @property
    def prompt(self) -> str | None:
        return self.artifact.settings["prompt"]

    @property
    def labels(self) -> list[str]:
        """Class names of the pool, sorted; empty where it has none, or answers."""
        return self.artifact.settings["labels"]

    @property
    def hashes(self) -> list[str]:
        return self.records["hash"].to_pylist()

    @property
    def modality(self) -> Modality:
        return "image" if "image" in self.records.column_names else "text"

    def texts(self, rows: Sequence[int]) -> list[Item]:
        values = self.records[self.modality].take(pa.array(list(rows), pa.int64())).to_pylist()
        return [Picture(value) for value in values] if self.modality == "image" else values

    def labels_of(self, rows: Sequence[int]) -> list[str] | None:
        if not self.labels and not _answers(self.prompt):
            return None
        return self.records["label"].take(pa.array(list(rows), pa.int64())).to_pylist()

    def rows_of(self, hashes: Sequence[str]) -> list[int]:
        """Rows of items by content hash.

        Raises:
            KeyError: a hash that is not in the pool.
        """
        known = {value: row for row, value in enumerate(self.hashes)}
        return [known[value] for value in hashes]


def build_pool(path: Path, settings: PoolSettings, seed: SeedModel, random_seed: int) -> Pool:
    """Load, remove exact duplicates, embed, and write the artifact at `path`; at once if it is there already.

    Raises:
        DataError: faulty rows, fewer than two distinct items, items of a kind that the seed does not read, or a
            prompt for a pool without labels.
    """
    examples = load_texts(settings.data, settings.columns, settings.limit, random_seed)
    check_modality(seed, examples.texts, "pool")
    if settings.prompt is not None and examples.labels is None:
        raise DataError(
            f"The pool {settings.data} has a prompt but no labels.",
            do="name the column in pool.columns.label",
        )
    # Of equal texts with different labels the first label in sorted order stays, whatever the order of the source.
    order = sorted(range(len(examples)), key=lambda row: examples.labels[row] if examples.labels else "", reverse=True)
    distinct = {content_hash(examples.texts[row]): row for row in order}
    if len(distinct) < 2:
        raise DataError(f"The pool {settings.data} holds too few items.", got=len(distinct), expected="2 or more")
    hashes = sorted(distinct)
    texts = [examples.texts[distinct[value]] for value in hashes]
    labels = [examples.labels[distinct[value]] for value in hashes] if examples.labels else [None] * len(hashes)
    facts = {
        "data": short_name(settings.data),
        "prompt": settings.prompt,
        "labels": sorted({label for label in labels if label is not None}) if not _answers(settings.prompt) else [],
        "items": len(hashes),
        "duplicates_removed": len(examples.texts) - len(hashes),
        "max_length": seed.max_length,
    }
    inputs = {"seed_model": seed.fingerprint, "records": _digest(hashes, labels)}
    if finished(path, "pool", inputs, facts) is not None:
        return read_pool(path)
    with writing(path, "pool", inputs, facts) as folder:
        column = pa.array([text.png if isinstance(text, Picture) else text for text in texts])
        labelled = {"label": pa.array(labels, pa.string()), "hash": pa.array(hashes)}
        table = pa.table({modality_of(texts): column, **labelled})
        with pa.OSFile(str(folder / RECORDS), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=CHUNK)
        _embed(folder / EMBEDDINGS, texts, seed)
    return read_pool(path)


def read_pool(path: Path, seed: SeedModel | None = None) -> Pool:
    """Open a pool; with `seed`, check that its embeddings are that seed's.

    Raises:
        ArtifactError: no intact pool at `path`.
        IncompatibleSeedModel: embedded with another seed model.
    """
    artifact = read_artifact(path, "pool")
    if not {RECORDS, EMBEDDINGS} <= artifact.files.keys():  # or the hash in the charter would not cover them
        raise ArtifactError(f"The manifest of {path} does not name all files of a pool.", do="build the pool again")
    if seed is not None and artifact.inputs.get("seed_model") != seed.fingerprint:
        raise IncompatibleSeedModel(
            f"The pool {path} was embedded with another seed model.",
            got=artifact.inputs.get("seed_model"),
            expected=seed.fingerprint,
            do="use the seed model of the charter, or build the pool again",
        )
    try:
        records = pa.ipc.open_file(pa.memory_map(str(artifact.path / RECORDS))).read_all()
        embeddings = np.load(artifact.path / EMBEDDINGS, mmap_mode="r")
    except (pa.ArrowException, ValueError, EOFError) as error:
        raise ArtifactError(f"The pool {path} is malformed.", got=str(error), do="get the pool again") from None
    fields = (["text", "label", "hash"], ["image", "label", "hash"])
    if records.column_names not in fields or embeddings.shape[:1] != (len(records),):
        raise ArtifactError(f"The records and embeddings of {path} do not belong together.", do="get the pool again")
    return Pool(artifact, records, embeddings)


def verify_pool(pool: Pool, seed: SeedModel) -> None:
    """Check what an owner would otherwise take on trust: hashes are of the texts, embeddings are unit-norm.

    A planted copy of a private text could otherwise hide behind a false hash.

    Raises:
        ArtifactError: naming the first row that lies.
    """
    if pool.embeddings.shape[1:] != (seed.embedding_dim,) or pool.embeddings.dtype != np.float32:
        raise ArtifactError(f"The embeddings of {pool.artifact.path} are not of this seed model.")
    for start in range(0, len(pool), CHUNK):
        part = pool.records.slice(start, CHUNK)
        hashes = [_hash_of_stranger(item) for item in pool.texts(range(start, start + len(part)))]
        honest = np.array(hashes) == np.array(part["hash"].to_pylist())
        lengths = np.linalg.norm(pool.embeddings[start : start + CHUNK].astype(np.float64), axis=1)
        wrong = np.flatnonzero(~honest | ~(np.abs(lengths - 1.0) < UNIT_NORM))
        if len(wrong):
            raise ArtifactError(
                f"Row {start + int(wrong[0])} of the pool {pool.artifact.path} is not what it claims to be: its hash "
                f"or its embedding does not belong to its {pool.modality}.",
                do="do not use this pool; ask the coordinator about it",
            )


def is_held_out(value: str, one_in: int) -> bool:
    """Whether the item with this content hash is held out of statistics and training: a rule of the charter."""
    return int(value[:8], 16) % one_in == 0


def _hash_of_stranger(item: Item) -> str | None:
    """The content hash; None where a pool from another machine holds what is no picture."""
    try:
        return content_hash(item)
    except ValueError:
        return None


def _answers(prompt: str | None) -> bool:
    """Whether labels are answers to the texts, and no classes that could be listed."""
    return prompt is not None and "{text}" in prompt


def _digest(hashes: Sequence[str], labels: Sequence[str | None]) -> str:
    digest = hashlib.sha256()
    for value, label in zip(hashes, labels, strict=True):
        digest.update(canonical_json([value, label]))
    return digest.hexdigest()


def _embed(path: Path, texts: Sequence[Item], seed: SeedModel) -> None:
    # Written, not memory-mapped: on a full disk a mapped page kills the process instead of raising an error.
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(texts), seed.embedding_dim)}
    with path.open("wb") as file, progress_bar("embed the pool", len(texts)) as bar:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(texts), CHUNK):
            chunk = texts[start : start + CHUNK]
            file.write(embed_texts(seed, chunk).astype("<f4").tobytes())
            bar.advance(len(chunk))
