"""Pool records equal or close to private ones are shown to the owner, and nothing leaves without the owner's word."""

from dataclasses import replace

import numpy as np
import pytest

from collegium.core.errors import ReleaseRefused
from collegium.core.recipe import OwnerRecipe
from collegium.models.encoder import embed_texts
from collegium.owner import overlap as overlap_module
from collegium.owner.contribute import contribute
from collegium.owner.overlap import find_overlap, refuse_overlap
from collegium.owner.private_data import load_private
from collegium.privacy.release_store import ReleaseStore
from tiny import write_rows

PRIVATE = ["the old cow here", "a small hen near wheat", "two pig far"]


def with_embeddings(pool, embeddings):
    return replace(pool, embeddings=embeddings.astype(np.float32))


@pytest.fixture
def apart(pool, seed):
    """The pool with embeddings orthogonal to all private ones, and the private embeddings."""
    private = np.eye(seed.dim, dtype=np.float32)[: len(PRIVATE)]
    embeddings = np.tile(np.eye(seed.dim, dtype=np.float32)[-1], (len(pool), 1))
    return with_embeddings(pool, embeddings), private


def test_unlike_records_are_no_overlap(apart):
    pool, private = apart
    assert find_overlap(pool, PRIVATE, private, 0.95) == []


def test_an_equal_text_is_found_whatever_its_embedding(apart):
    pool, private = apart
    texts = [PRIVATE[0], pool.texts([7])[0], PRIVATE[2]]
    found = find_overlap(pool, texts, private, 1.0)
    assert [(one.pool_row, one.private_row, one.cosine) for one in found] == [(7, 1, 1.0)]


@pytest.mark.parametrize("chunk", [1, 7, 8192])
def test_a_near_copy_is_found_with_the_nearest_private_example(apart, monkeypatch, chunk):
    monkeypatch.setattr(overlap_module, "CHUNK", chunk)
    pool, private = apart
    embeddings = np.array(pool.embeddings)
    for row, cosine in [(0, 0.96), (3, 0.94), (len(pool) - 1, 0.99)]:
        embeddings[row] = cosine * private[2] + np.sqrt(1 - cosine**2) * np.eye(len(embeddings[0]))[-2]
    found = find_overlap(with_embeddings(pool, embeddings), PRIVATE, private, 0.95)
    assert [(one.pool_row, one.private_row) for one in found] == [(0, 2), (len(pool) - 1, 2)]
    assert [one.cosine for one in found] == pytest.approx([0.96, 0.99], abs=1e-6)


def test_shortened_embeddings_of_a_hostile_pool_hide_nothing(apart):
    pool, private = apart
    embeddings = np.array(pool.embeddings)
    embeddings[3], embeddings[5] = 0.01 * private[1], 0
    found = find_overlap(with_embeddings(pool, embeddings), PRIVATE, private, 0.95)
    assert [(one.pool_row, one.private_row) for one in found] == [(3, 1)]


def test_the_seeds_own_near_copies_are_found(pool, seed):
    """A pool text with one more word, embedded by the real (tiny) seed."""
    text = pool.texts([5])[0]
    embeddings = embed_texts(seed, [text.upper() + " the", text])
    found = find_overlap(pool, [text + " the", "x"], embeddings[1:].repeat(2, axis=0), 0.999)
    assert (5, 0) in [(one.pool_row, one.private_row) for one in found]


def test_the_owner_sees_both_texts_and_how_many_there_are(pool, apart):
    other, private = apart
    texts = pool.texts(range(8))
    found = find_overlap(other, texts, np.tile(private[0], (8, 1)), 1.0)
    with pytest.raises(ReleaseRefused) as raised:
        refuse_overlap(other, texts, found)
    message = str(raised.value)
    assert "8 record(s)" in message
    assert "… and 3 more" in message
    assert message.count(repr(texts[0])) == 2
    assert "--allow-overlap" in message
    assert raised.value.exit_code == 2


def test_a_contribution_with_overlap_is_refused_before_anything_is_remembered_or_written(
    tmp_path, charter, pool, seed, data_folder
):
    """A planted pool record makes nothing leave; with the owner's word the contribution is made."""
    data = write_rows(tmp_path / "farm.jsonl", "farm", 20)
    recipe = OwnerRecipe(name="farm", data=str(data), privacy={"overlap_similarity": 1.0})
    private = load_private(charter, recipe)
    planted = np.array(pool.embeddings)
    planted[4] = embed_texts(seed, private.texts[:1])[0] * 1.00001
    hostile = with_embeddings(pool, planted)
    store = ReleaseStore(tmp_path / "store")
    with pytest.raises(ReleaseRefused, match="pool record 4") as raised:
        contribute(charter, recipe, hostile, seed, tmp_path / "out", store)
    assert repr(private.texts[0])[:80] in str(raised.value)
    assert not (tmp_path / "out").exists()
    assert not (store.folder / "releases.json").exists()
    artifact = contribute(charter, recipe, hostile, seed, tmp_path / "out", store, allow_overlap=True)
    assert artifact.kind == "contribution"
