"""Shards and their merge are greedy twice; they travel as artifacts and run in processes with the same result."""

import json
import multiprocessing
import os
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collegium.core.errors import ArtifactError, InputError, RecipeError, RunError
from collegium.core.load_recipe import parse_settings
from collegium.core.recipe import SelectionSettings
from collegium.selection import select, shard_processes, shards
from collegium.selection.dpp import select_dpp
from collegium.selection.relevance import log_relevance
from collegium.selection.select import select_one_shard, select_proxies
from collegium.selection.shard_processes import select_in_shards, shard_path
from collegium.selection.shards import merge_selections, read_shard, select_shard, shard_rows, write_shard


def make_pool(num_items, dim, seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_items, dim)) + 2 * rng.normal(size=(4, dim))[rng.integers(4, size=num_items)]
    features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    log_g = np.log(rng.uniform(0.05, 1, num_items))
    log_g[rng.random(num_items) < 0.1] = -np.inf
    return features, log_g, [f"{number:06x}" for number in rng.permutation(num_items)]


@pytest.fixture
def mapped(tmp_path):
    features, log_g, hashes = make_pool(240, 12, 0)
    order = np.argsort(hashes)  # as a pool artifact lies on disk
    np.save(tmp_path / "embeddings.npy", features[order])
    return np.load(tmp_path / "embeddings.npy", mmap_mode="r"), log_g[order], sorted(hashes)


@settings(max_examples=60)
@given(
    num_items=st.integers(1, 60),
    num_shards=st.integers(1, 8),
    size=st.integers(1, 20),
    ridge=st.sampled_from([0.0, 1e-3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_the_merge_is_the_better_of_the_second_greedy_and_the_best_shard(num_items, num_shards, size, ridge, seed):
    features, log_g, hashes = make_pool(num_items, 6, seed)
    answers = [select_shard(features, log_g, size, ridge, hashes, shard, num_shards) for shard in range(num_shards)]
    merged = merge_selections(answers[::-1])
    blocks = np.array_split(np.argsort(hashes), num_shards)
    rows = [int(row) for block in blocks for row in block]
    assert sorted(rows) == sorted(
        chain(*(shard_rows(num_items, hashes, s, num_shards).tolist() for s in range(num_shards)))
    )
    union = sorted(chain(*(answer.rows.tolist() for answer in answers)))
    assert len(set(union)) == len(union)
    second = select_dpp(features[union], log_g[union], size, ridge, [hashes[row] for row in union])
    best = max(answers, key=lambda answer: (len(answer.rows), answer.log_det))
    if (len(best.rows), best.log_det) > (len(second.indices), second.log_det + 1e-9):
        assert merged.indices.tolist() == best.rows.tolist()
    elif (len(second.indices), second.log_det) > (len(best.rows), best.log_det + 1e-9):
        assert merged.indices.tolist() == [union[pick] for pick in second.indices]
    assert merged.log_det >= max(answer.log_det for answer in answers if len(answer.rows) == len(best.rows)) - 1e-9 or (
        len(merged.indices) > len(best.rows)
    )
    exact = select_dpp(features, log_g, size, ridge, hashes)
    assert len(merged.indices) == len(exact.indices)  # no shard takes items away
    assert (merged.shortfall is None) == (exact.shortfall is None)
    if num_shards == 1:
        assert merged.indices.tolist() == exact.indices.tolist()


def test_the_best_shard_wins_where_the_second_greedy_is_worse(monkeypatch):
    features, log_g, hashes = make_pool(40, 6, 1)
    answers = [select_shard(features, log_g, 5, 1e-3, hashes, shard, 3) for shard in range(3)]
    best = max(answers, key=lambda answer: answer.log_det)
    greedy = shards.select_dpp
    monkeypatch.setattr(shards, "select_dpp", lambda f, relevance, *rest: greedy(f, -5 - relevance, *rest))
    merged = merge_selections(answers)
    assert merged.indices.tolist() == best.rows.tolist()
    assert (merged.log_det, merged.gains.tolist()) == (best.log_det, best.gains.tolist())


def test_shards_are_even_and_the_order_of_the_pool_does_not_matter():
    features, log_g, hashes = make_pool(100, 8, 2)
    sizes = [len(shard_rows(100, hashes, shard, 7)) for shard in range(7)]
    assert max(sizes) - min(sizes) == 1
    order = np.random.default_rng(3).permutation(100)
    permuted = (features[order], log_g[order], [hashes[i] for i in order])
    merged = select_in_shards(features, log_g, 12, 1e-3, hashes, 4)
    assert order[select_in_shards(*permuted[:2], 12, 1e-3, permuted[2], 4).indices].tolist() == merged.indices.tolist()


def test_a_shard_comes_back_from_disk_as_it_was(tmp_path):
    features, log_g, hashes = make_pool(50, 6, 4)
    for content_hashes in (hashes, None):
        shard = select_shard(features.astype(np.float16), log_g, 7, 1e-3, content_hashes, 1, 3)
        write_shard(tmp_path / "shard", shard)
        again = read_shard(tmp_path / "shard")
        assert again.features.dtype == np.float16
        for name, value in vars(shard).items():
            np.testing.assert_array_equal(getattr(again, name), value)
    answers = [select_shard(features.astype(np.float16), log_g, 7, 1e-3, None, other, 3) for other in (0, 2)]
    assert merge_selections([*answers, again]).indices.tolist() == merge_selections([*answers, shard]).indices.tolist()


def test_a_changed_or_foreign_shard_is_refused(tmp_path):
    features, log_g, hashes = make_pool(50, 6, 5)
    first, second = (select_shard(features, log_g, 7, 1e-3, hashes, shard, 2) for shard in (0, 1))
    with pytest.raises(InputError, match="needed once"):
        merge_selections([first, first])
    with pytest.raises(InputError, match="needed once"):
        merge_selections([second])
    for other in (
        select_shard(features, log_g - 0.1, 7, 1e-3, hashes, 1, 2),
        select_shard(features, log_g, 6, 1e-3, hashes, 1, 2),
        select_shard(features, log_g, 7, 1e-2, hashes, 1, 2),
    ):
        with pytest.raises(InputError, match="2 different questions"):
            merge_selections([first, other])
    write_shard(tmp_path / "shard", first)
    manifest = tmp_path / "shard" / "manifest.json"
    content = json.loads(manifest.read_bytes())
    del content["settings"]["ridge"]
    manifest.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="malformed"):
        read_shard(tmp_path / "shard")
    with pytest.raises(InputError, match="no such shard"):
        select_shard(features, log_g, 7, 1e-3, hashes, 2, 2)


def test_processes_change_nothing(mapped):
    features, log_g, hashes = mapped
    here = select_in_shards(np.array(features), log_g, 20, 1e-3, hashes, 3)
    elsewhere = select_in_shards(features, log_g, 20, 1e-3, hashes, 3, processes=2)
    assert elsewhere.indices.tolist() == here.indices.tolist()
    assert elsewhere.gains.tolist() == here.gains.tolist()
    assert not multiprocessing.active_children()


def test_a_part_of_a_map_is_never_opened_by_its_path(mapped):
    assert shard_processes._source(mapped[0]) is not None
    for part in (mapped[0][:100], mapped[0][100:], mapped[0][::-1], np.array(mapped[0])):
        assert shard_processes._source(part) is None


@pytest.fixture
def forked(monkeypatch):
    """Processes that start at once; those of the package import torch first."""
    monkeypatch.setattr(shard_processes, "get_context", lambda _: multiprocessing.get_context("fork"))


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.usefixtures("forked")
def test_a_fault_in_a_process_is_one_clear_error(mapped, tmp_path):
    features, log_g, hashes = mapped
    spoiled = np.array(features)
    spoiled[200] = np.nan
    np.save(tmp_path / "spoiled.npy", spoiled)
    with pytest.raises(InputError, match=r"In shard 3/3, whose first row is row 160 of the pool: Row 40") as raised:
        select_in_shards(np.load(tmp_path / "spoiled.npy", mmap_mode="r"), log_g, 5, 1e-3, hashes, 3, processes=3)
    assert raised.value.expected == "finite values, not all of them 0"
    assert not multiprocessing.active_children()


def die(sender, source, tasks):
    os._exit(9)


def die_in_the_middle_of_a_message(sender, source, tasks):
    os.write(sender.fileno(), b"\x00\x00\x10\x00" + b"part of 4,096 bytes")
    os._exit(9)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("end", [die, die_in_the_middle_of_a_message])
def test_a_process_that_is_killed_is_noticed(mapped, monkeypatch, end):
    features, log_g, hashes = mapped
    monkeypatch.setattr(shard_processes, "_work", end)
    with pytest.raises(RunError, match=r"process of shard \d/3 ended without an answer"):
        select_in_shards(features, log_g, 5, 1e-3, hashes, 3, processes=2)
    assert not multiprocessing.active_children()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.usefixtures("forked")
def test_ctrl_c_ends_every_process_and_kept_shards_are_not_run_again(mapped, tmp_path, monkeypatch):
    features, log_g, hashes = mapped
    arguments = (features, log_g, 20, 1e-3, hashes, 3)
    waited = []
    wait = shard_processes.wait

    def interrupted(connections):
        waited.append(len(connections))
        if len(waited) > 1:
            raise KeyboardInterrupt
        return wait(connections)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shard_processes, "wait", interrupted)
        select_in_shards(*arguments, processes=2, kept=tmp_path / "kept")
    assert not multiprocessing.active_children()
    done = {path.name for path in (tmp_path / "kept").iterdir()}
    assert done <= {"1-of-3", "2-of-3"}
    assert done
    run = []
    answer = shard_processes.answer
    monkeypatch.setattr(
        shard_processes, "answer", lambda question, shard, *rest: run.append(shard) or answer(question, shard, *rest)
    )
    finished = select_in_shards(*arguments, processes=1, kept=tmp_path / "kept")
    assert len(run) == 3 - len(done)
    assert finished.indices.tolist() == select_in_shards(*arguments, processes=1).indices.tolist()
    # a kept shard of another question is not used
    run.clear()
    select_in_shards(features, log_g, 19, 1e-3, hashes, 3, processes=1, kept=tmp_path / "kept")
    assert len(run) == 3


def test_proxies_from_shards_run_one_by_one_on_different_machines(mapped, tmp_path, monkeypatch):
    features, _, hashes = mapped
    private = features[:30] + np.float32(0.01)
    asked = SelectionSettings(size=20, shards=3)
    whole = select_proxies(features, hashes, private, asked, 5, processes=1)
    for shard in (2, 0, 1):
        select_one_shard(features, hashes, private, asked, 5, shard, tmp_path / "kept")
        assert shard_path(tmp_path / "kept", shard, 3).is_dir()
    monkeypatch.setattr(shard_processes, "answer", None)  # nothing is left to run
    assert select_proxies(features, hashes, private, asked, 5, kept=tmp_path / "kept").indices.tolist() == (
        whole.indices.tolist()
    )


def test_every_shard_has_the_relevance_of_the_whole_pool(mapped, tmp_path):
    features, _, hashes = mapped
    private = features[:30] + np.float32(0.01)
    asked = SelectionSettings(size=20, shards=3)
    relevance = log_relevance(features, private, asked.relevance, 5)
    for shard in range(3):
        found = select_one_shard(features, hashes, private, asked, 5, shard, tmp_path / "kept")
        assert found.log_relevance.tolist() == relevance[found.rows].tolist()


def test_the_number_of_shards_is_a_setting_of_the_dpp_alone(mapped, monkeypatch):
    with pytest.raises(RecipeError, match="shards: 2 is for method dpp"):
        parse_settings({"method": "k-centre", "shards": 2}, SelectionSettings)
    features, _, hashes = mapped
    seen = []
    monkeypatch.setattr(select, "select_in_shards", lambda *args: seen.append(args[5:]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        select_proxies(features, hashes, features[:9], SelectionSettings(size=20, shards=4), 5, processes=2)
    assert seen == [(4, 2, None, torch.get_num_threads())]
