"""The public pool: distinct, in the order of its hashes, the same whatever the order of its source."""

import errno
import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collegium.core import artifacts
from collegium.core.artifacts import MANIFEST, canonical_json
from collegium.core.errors import ArtifactError, DataError, IncompatibleSeedModel, RunError
from collegium.core.recipe import PoolSettings
from collegium.models.encoder import embed_texts
from collegium.models.seed_model import load_seed_model
from collegium.selection import pool as pool_module
from collegium.selection.pool import EMBEDDINGS, RECORDS, build_pool, content_hash, is_held_out, read_pool, verify_pool
from tiny import POOL_WORDS, make_texts, make_tiny_seed

TEXTS = make_texts(POOL_WORDS, 30, "here")


def write(path, rows):
    lines = [json.dumps(row if isinstance(row, dict) else {"text": row}) + "\n" for row in rows]
    path.write_text("".join(lines))
    return PoolSettings(data=str(path))


def test_duplicates_are_removed_and_counted(tmp_path, seed):
    pool = build_pool(tmp_path / "pool", write(tmp_path / "p.jsonl", TEXTS + TEXTS[:7]), seed, 0)
    assert sorted(pool.texts(range(len(pool)))) == sorted(TEXTS)
    assert pool.artifact.settings["duplicates_removed"] == 7
    assert pool.artifact.settings["items"] == len(pool) == 30


def test_items_stand_in_the_order_of_their_hashes_with_the_seeds_embeddings(pool, seed):
    texts = pool.texts(range(len(pool)))
    assert pool.hashes == [content_hash(text) for text in texts] == sorted(pool.hashes)
    assert np.asarray(pool.embeddings) == pytest.approx(embed_texts(seed, texts), abs=1e-6)
    assert np.linalg.norm(pool.embeddings, axis=1) == pytest.approx(np.ones(len(pool)), abs=1e-5)
    assert pool.rows_of(pool.hashes[5:2:-1]) == [5, 4, 3]
    with pytest.raises(KeyError):
        pool.rows_of(["f" * 32])


@settings(max_examples=10, deadline=None)
@given(number=st.integers(0, 1000), labelled=st.booleans())
def test_the_order_of_the_source_does_not_matter(tmp_path_factory, seed, number, labelled):
    folder = tmp_path_factory.mktemp("order")
    rows = [{"text": text} | ({"label": text.split()[0]} if labelled else {}) for text in TEXTS]
    rows += [{"text": TEXTS[3]} | ({"label": "another label of the same text"} if labelled else {})]
    shuffled = random.Random(number).sample(rows, len(rows))
    first = build_pool(folder / "one", write(folder / "p.jsonl", rows), seed, 0)
    second = build_pool(folder / "two", write(folder / "p.jsonl", shuffled), seed, 0)
    assert first.artifact.sha256 == second.artifact.sha256


def test_a_finished_pool_is_not_built_again_and_a_changed_one_is(tmp_path, seed, monkeypatch):
    settings_ = write(tmp_path / "p.jsonl", TEXTS)
    first = build_pool(tmp_path / "pool", settings_, seed, 0).artifact.sha256
    embedded = []
    embed = pool_module._embed
    monkeypatch.setattr(pool_module, "_embed", lambda *args: embedded.append(1) or embed(*args))
    assert build_pool(tmp_path / "pool", settings_, seed, 0).artifact.sha256 == first
    assert embedded == []
    with (tmp_path / "pool" / EMBEDDINGS).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    assert build_pool(tmp_path / "pool", settings_, seed, 0).artifact.sha256 == first
    write(tmp_path / "p.jsonl", TEXTS[1:])
    assert build_pool(tmp_path / "pool", settings_, seed, 0).artifact.sha256 != first
    assert embedded == [1, 1]


@pytest.mark.parametrize("rows", [["one text"], ["one text"] * 9])
def test_case_18_too_few_texts(tmp_path, seed, rows):
    with pytest.raises(DataError, match="too few items"):
        build_pool(tmp_path / "pool", write(tmp_path / "p.jsonl", rows), seed, 0)
    assert not (tmp_path / "pool").exists()


def test_a_prompt_needs_labels(tmp_path, seed):
    settings_ = write(tmp_path / "p.jsonl", TEXTS).model_copy(update={"prompt": "a {label}"})
    with pytest.raises(DataError, match="a prompt but no labels"):
        build_pool(tmp_path / "pool", settings_, seed, 0)


def test_case_23_faulty_rows_are_named(tmp_path, seed):
    with pytest.raises(DataError, match="row 3: the text is empty"):
        build_pool(tmp_path / "pool", write(tmp_path / "p.jsonl", [*TEXTS[:2], "  ", *TEXTS[2:]]), seed, 0)


def test_labels_belong_to_their_texts(tmp_path, seed):
    rows = [{"text": text, "label": "label " + text.split()[0]} for text in TEXTS]
    pool = build_pool(tmp_path / "pool", write(tmp_path / "p.jsonl", rows), seed, 0)
    texts = pool.texts([4, 2])
    assert pool.labels_of([4, 2]) == ["label " + text.split()[0] for text in texts]
    assert pool.labels == sorted({row["label"] for row in rows})


def test_another_seed_is_refused_with_both_fingerprints(tmp_path, pool, seed):
    other = load_seed_model(str(make_tiny_seed(tmp_path / "seed", random_seed=1)))
    read_pool(pool.artifact.path, seed)
    with pytest.raises(IncompatibleSeedModel) as raised:
        read_pool(pool.artifact.path, other)
    assert seed.fingerprint in str(raised.value)
    assert other.fingerprint in str(raised.value)


@pytest.mark.parametrize("name", [RECORDS, EMBEDDINGS])
def test_files_that_the_hash_does_not_cover_are_refused(tmp_path, pool, name):
    path = shutil.copytree(pool.artifact.path, tmp_path / "pool")
    manifest = json.loads((path / MANIFEST).read_bytes())
    del manifest["files"][name]
    (path / MANIFEST).write_bytes(canonical_json(manifest))
    with pytest.raises(ArtifactError, match="does not name all files"):
        read_pool(path)


@pytest.mark.parametrize("damage", [RECORDS, EMBEDDINGS, "fewer rows", "empty"])
def test_a_malformed_pool_is_refused_though_its_hashes_are_right(tmp_path, pool, damage):
    path = shutil.copytree(pool.artifact.path, tmp_path / "pool")
    if damage == "fewer rows":
        np.save(path / EMBEDDINGS, np.array(pool.embeddings[1:]))
    else:
        (path / (EMBEDDINGS if damage == "empty" else damage)).write_bytes(b"" if damage == "empty" else b"garbage" * 9)
    manifest = json.loads((path / MANIFEST).read_bytes())
    for name in (RECORDS, EMBEDDINGS):
        content = (path / name).read_bytes()
        manifest["files"][name] = {"sha256": artifacts.sha256_of(content), "bytes": len(content)}
    (path / MANIFEST).write_bytes(canonical_json(manifest))
    with pytest.raises(ArtifactError, match="malformed|do not belong together"):
        read_pool(path)


def test_a_pool_is_memory_mapped(pool):
    assert isinstance(pool.embeddings, np.memmap)
    assert not pool.embeddings.flags.writeable
    import pyarrow as pa

    before = pa.total_allocated_bytes()
    opened = read_pool(pool.artifact.path)
    assert opened.records.nbytes > 0
    assert pa.total_allocated_bytes() == before


def test_case_22_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path, seed, monkeypatch):
    settings_ = write(tmp_path / "p.jsonl", TEXTS)

    def full(_file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(artifacts, "_fsync", full)
    with pytest.raises(RunError, match="No space left"):
        build_pool(tmp_path / "pool", settings_, seed, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["p.jsonl"]


@settings(deadline=None)
@given(st.lists(st.text(), unique=True, max_size=20), st.integers(2, 20))
def test_holding_out_depends_on_the_text_alone(texts, one_in):
    for text in texts:
        value = content_hash(text)
        assert is_held_out(value, one_in) == (int(value[:8], 16) % one_in == 0)
    assert [content_hash(text) for text in texts] == [content_hash(text) for text in texts]


def test_about_a_tenth_is_held_out():
    share = np.mean([is_held_out(content_hash(f"text {number}"), 10) for number in range(20_000)])
    assert share == pytest.approx(0.1, abs=0.01)  # 4.7 standard deviations


def test_an_owner_notices_a_pool_that_lies_about_hashes_or_embeddings(pool, seed):
    verify_pool(pool, seed)
    hashes = pool.hashes
    planted = pool.records.set_column(2, "hash", pa.array([*hashes[:7], "0" * 32, *hashes[8:]]))
    with pytest.raises(ArtifactError, match="Row 7 "):
        verify_pool(replace(pool, records=planted), seed)
    for factor in (0.5, 1e20, np.nan):
        embeddings = np.array(pool.embeddings)
        embeddings[3] *= np.float32(factor)
        with pytest.raises(ArtifactError, match="Row 3 "):
            verify_pool(replace(pool, embeddings=embeddings), seed)
    with pytest.raises(ArtifactError, match="not of this seed model"):
        verify_pool(replace(pool, embeddings=np.array(pool.embeddings[:, :8])), seed)
