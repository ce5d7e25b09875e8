"""The owner's memory of releases: what would give away the number of examples and their mean is refused."""

import json
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collegium
from collegium.core.errors import ArtifactError, ReleaseRefused
from collegium.privacy.release_store import RELEASES, ReleaseStore

# The package without its __init__, which imports torch: a child process then starts in a fraction of a second.
LIGHT = (
    "import sys, types; package = types.ModuleType('collegium')\n"
    f"package.__path__ = {list(collegium.__path__)!r}; sys.modules['collegium'] = package\n"
)


@settings(deadline=None)
@given(
    num_private=st.integers(1, 500),
    num_proxies=st.integers(2, 50),
    seed=st.integers(0, 1000),
)
def test_two_releases_with_other_proxies_give_the_number_and_the_private_mean(num_private, num_proxies, seed):
    """Why a second release is refused: r1 − r2 = m (μ1 − μ2) / (N + m), and everything but N is known."""
    random = np.random.default_rng(seed)
    private = random.normal(size=(num_private, 8)) + 1
    proxies = [random.normal(size=(num_proxies, 8)) for _ in range(2)]
    first, second = (np.concatenate([private, chosen]).mean(axis=0) for chosen in proxies)
    known = proxies[0].mean(axis=0) - proxies[1].mean(axis=0)
    total = num_proxies * np.dot(known, known) / np.dot(known, first - second)
    assert round(total - num_proxies) == num_private
    mean = (total * first - num_proxies * proxies[0].mean(axis=0)) / (total - num_proxies)
    assert mean == pytest.approx(private.mean(axis=0), abs=1e-6)


def released(store: ReleaseStore) -> list[dict]:
    return json.loads((store.folder / RELEASES).read_bytes())


@pytest.fixture
def store(tmp_path) -> ReleaseStore:
    store = ReleaseStore(tmp_path / "home" / "store")
    store.check_and_record("one", "digest 1", ["a", "b", "c"], "none")
    return store


def test_a_second_different_release_over_shared_records_is_refused(store):
    with pytest.raises(ReleaseRefused, match="1 of them .* project 'one'") as raised:
        store.check_and_record("two", "digest 2", ["c", "d"], "none")
    assert raised.value.exit_code == 2
    assert [release["routing"] for release in released(store)] == ["digest 1"]


def test_the_identical_release_may_be_made_again(store):
    for _ in range(2):
        store.check_and_record("one", "digest 1", ["c", "b", "a"], "none")
    assert len(released(store)) == 1


def test_disjoint_data_may_be_released(store):
    store.check_and_record("two", "digest 2", ["d", "e"], "none")
    with pytest.raises(ReleaseRefused):
        store.check_and_record("three", "digest 3", ["e", "f"], "none")


def test_a_mechanism_must_protect_both_releases(store):
    with pytest.raises(ReleaseRefused):
        store.check_and_record("one", "digest 2", ["a"], "gaussian")
    store.check_and_record("one", "digest 3", ["x", "y"], "gaussian")
    store.check_and_record("one", "digest 4", ["y", "z"], "gaussian")
    with pytest.raises(ReleaseRefused):
        store.check_and_record("one", "digest 5", ["z"], "none")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcdef"), min_size=1), st.sampled_from(["none", "gaussian"])), max_size=6
    )
)
def test_no_two_releases_in_the_memory_share_a_record_without_protection(tmp_path_factory, attempts):
    store = ReleaseStore(tmp_path_factory.mktemp("store"))
    for number, (records, mechanism) in enumerate(attempts):
        try:
            store.check_and_record("p", f"digest {number}", sorted(records), mechanism)
        except ReleaseRefused:
            continue
    kept = released(store) if attempts else []
    assert bool(kept) == bool(attempts)
    for first in kept:
        for second in kept:
            if first is not second and set(first["records"]) & set(second["records"]):
                assert (first["mechanism"], second["mechanism"]) == ("gaussian", "gaussian")


DAMAGED = [b"", b"[", b'[{"project"', b"\xff", b"{}", b"null", b"3", b'{"a": 1}', b"[1]", b'[{"routing": "x"}]']
DAMAGED += [b'[{"project": "a", "routing": "b", "mechanism": "none", "records": "abc"}]', b"[" * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_memory_is_an_error_and_not_an_empty_one(store, content):
    (store.folder / RELEASES).write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged"):
        store.check_and_record("two", "digest 2", ["a"], "none")
    assert (store.folder / RELEASES).read_bytes() == content


def test_only_its_owner_can_read_the_memory(store):
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    store.folder.chmod(0o755)
    store.remember("note", "x")
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_notes_are_recalled(store):
    assert store.recall("note") is None
    store.remember("note", "abc")
    assert store.recall("note") == "abc"


def test_of_two_threads_at_once_only_one_passes(tmp_path, monkeypatch):
    """Every reader waits for the others before it goes on, so without the lock all of them would pass."""
    store, passed, barrier = ReleaseStore(tmp_path), [], threading.Barrier(4)
    read = ReleaseStore._read

    def slow_read(self):
        found = read(self)
        threading.Event().wait(0.05)
        return found

    monkeypatch.setattr(ReleaseStore, "_read", slow_read)

    def release(number: int) -> None:
        barrier.wait()
        try:
            store.check_and_record("p", f"digest {number}", ["a"], "none")
            passed.append(number)
        except ReleaseRefused:
            pass

    threads = [threading.Thread(target=release, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == len(released(store)) == 1


def test_of_two_processes_at_once_only_one_passes(tmp_path):
    program = (
        "import sys, time; from pathlib import Path\n"
        "from collegium.privacy.release_store import ReleaseStore\n"
        "from collegium.core.errors import ReleaseRefused\n"
        "read = ReleaseStore._read\n"
        "def slow(self):\n    found = read(self); time.sleep(0.5); return found\n"
        "ReleaseStore._read = slow\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try: ReleaseStore(Path(sys.argv[1])).check_and_record('p', sys.argv[2], ['a'], 'none')\n"
        "except ReleaseRefused: sys.exit(2)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", LIGHT + program, tmp_path, name], stdin=-1, stdout=-1, text=True)
        for name in ("digest 1", "digest 2")
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    assert sorted(process.returncode for process in processes) == [0, 2]


def test_a_writer_that_is_killed_keeps_the_old_memory(store, monkeypatch):
    from collegium.privacy import release_store

    before = (store.folder / RELEASES).read_bytes()

    def killed(path, content):
        path.with_name(".half").write_bytes(content[:5])
        raise KeyboardInterrupt

    monkeypatch.setattr(release_store, "write_file", killed)
    with pytest.raises(KeyboardInterrupt):
        store.check_and_record("two", "digest 2", ["z"], "none")
    assert (store.folder / RELEASES).read_bytes() == before
