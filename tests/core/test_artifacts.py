"""Artifacts: the whole folder or nothing, and no changed, foreign or hostile folder is read."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

import collegium
from collegium.core import artifacts
from collegium.core.artifacts import (
    LARGEST_MANIFEST,
    MANIFEST,
    canonical_json,
    read_artifact,
    remove_leftovers,
    sha256_of,
    write_file,
    writing,
)
from collegium.core.errors import ArtifactError, RunError

# The package without its __init__, which imports torch: a child process then starts in a fraction of a second.
LIGHT = (
    "import sys, types; package = types.ModuleType('collegium')\n"
    f"package.__path__ = {list(collegium.__path__)!r}; sys.modules['collegium'] = package\n"
)
CONTENT = {"a.txt": b"one", "inner/b.bin": b"\x00two"}


def make(path: Path, content: dict[str, bytes] = CONTENT, kind: str = "thing", **facts: dict) -> Path:
    with writing(path, kind, facts.get("inputs", {}), facts.get("settings", {})) as folder:
        for name, value in content.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(value)
    return path


def change_manifest(path: Path, **changes: object) -> None:
    manifest = json.loads((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_text(json.dumps(manifest | changes))


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_was_written_is_read_back_with_inputs_settings_sizes_and_hashes(tmp_path):
    artifact = read_artifact(make(tmp_path / "x", inputs={"seed": "abc"}, settings={"size": 3}), "thing")
    assert (artifact.inputs, artifact.settings) == ({"seed": "abc"}, {"size": 3})
    assert artifact.files == {
        name: {"sha256": sha256_of(value), "bytes": len(value)} for name, value in CONTENT.items()
    }
    assert names(tmp_path) == ["x"]


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "b", "c/d"]), st.binary(max_size=8), min_size=1),
    st.dictionaries(st.sampled_from(["a", "b", "c/d"]), st.binary(max_size=8), min_size=1),
    st.integers(0, 1),
    st.integers(0, 1),
)
def test_the_hash_is_the_same_exactly_if_the_content_is(tmp_path_factory, first, second, size, other_size):
    folder = tmp_path_factory.mktemp("hash")
    one = read_artifact(make(folder / "one", first, settings={"size": size})).sha256
    two = read_artifact(make(folder / "two", second, settings={"size": other_size})).sha256
    assert (one == two) == (first == second and size == other_size)


@pytest.mark.parametrize("changed", [{"inputs": {"seed": "2"}}, {"settings": {"a": 2}}, {"kind": "other"}])
def test_the_hash_changes_with_kind_inputs_and_settings(tmp_path, changed):
    facts = {"inputs": {"seed": "1"}, "settings": {"a": 1}, "kind": "thing"}
    hashes = [
        read_artifact(make(tmp_path / name, **values)).sha256
        for name, values in {"x": facts, "y": facts | changed, "z": facts}.items()
    ]
    assert hashes[0] == hashes[2] != hashes[1]


def test_an_error_while_writing_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "x", "thing", {}, {}) as folder:
        (folder / "a.txt").write_text("half")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_an_error_while_replacing_keeps_the_old_artifact(tmp_path):
    before = read_artifact(make(tmp_path / "x")).sha256
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "x", "thing", {}, {}) as folder:
        (folder / "a.txt").write_text("half")
        raise ZeroDivisionError
    assert read_artifact(tmp_path / "x").sha256 == before
    assert names(tmp_path) == ["x"]


def test_an_artifact_is_replaced_by_one_of_its_kind(tmp_path):
    make(tmp_path / "x")
    make(tmp_path / "x", {"new": b"1"})
    assert set(read_artifact(tmp_path / "x").files) == {"new"}
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("holder", ["file", "folder of a user", "another kind", "malformed manifest"])
def test_anything_else_is_never_replaced(tmp_path, holder):
    path = tmp_path / "x"
    if holder == "file":
        path.write_text("mine")
    elif holder == "another kind":
        make(path, kind="other")
    else:
        path.mkdir()
        (path / (MANIFEST if holder == "malformed manifest" else "mine.txt")).write_text("mine")
    before = sorted((str(p), p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file())
    with pytest.raises(ArtifactError, match="already holds something else"):
        make(path)
    assert sorted((str(p), p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()) == before


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_a_damaged_artifact_of_its_kind_is_replaced_so_that_a_run_can_go_on(tmp_path, damage):
    before = read_artifact(make(tmp_path / "x")).sha256
    file = tmp_path / "x" / "a.txt"
    file.unlink() if damage == "missing" else file.write_bytes(b"" if damage == "shorter" else b"two")
    assert read_artifact(make(tmp_path / "x")).sha256 == before
    assert names(tmp_path) == ["x"]


def test_the_very_same_artifact_is_left_as_it_is(tmp_path):
    path = make(tmp_path / "x")
    before = path.stat().st_ino
    assert make(path).stat().st_ino == before
    assert make(path, {"new": b"1"}).stat().st_ino != before
    assert names(tmp_path) == ["x"]


def test_an_empty_folder_is_a_place_to_write(tmp_path):
    (tmp_path / "x").mkdir()
    assert read_artifact(make(tmp_path / "x")).kind == "thing"


@pytest.mark.parametrize("name", ["x", "run[1]", "a*b"])
def test_leftovers_of_a_killed_writer_are_removed(tmp_path, name):
    (tmp_path / f".{name}.building-99999").mkdir()
    (tmp_path / f".{name}.building-99999" / "half").write_text("half")
    (tmp_path / f".{name}.replaced-99999").mkdir()
    make(tmp_path / name)
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("name", ["x", "run[1]"])
def test_an_artifact_that_a_killed_writer_moved_away_is_put_back(tmp_path, name):
    before = read_artifact(make(tmp_path / name)).sha256
    (tmp_path / name).rename(tmp_path / f".{name}.replaced-99999")
    remove_leftovers(tmp_path / name)
    assert read_artifact(tmp_path / name).sha256 == before


def test_case_21_killed_while_writing_leaves_no_artifact_and_the_next_writer_succeeds(tmp_path):
    program = (
        "import sys, time; from collegium.core.artifacts import writing\n"
        "with writing(sys.argv[1], 'thing', {}, {}) as folder:\n"
        "    (folder / 'a.txt').write_text('half'); print('ready', flush=True); time.sleep(60)\n"
    )
    path = tmp_path / "x"
    with subprocess.Popen([sys.executable, "-c", LIGHT + program, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"ready\n"
        writer.send_signal(signal.SIGKILL)
    assert names(tmp_path) == [f".x.building-{writer.pid}"]
    with pytest.raises(ArtifactError, match="is no artifact"):
        read_artifact(path)
    make(path)
    assert read_artifact(path).kind == "thing"
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("moment", ["between the renames", "before the renames"])
def test_case_21_killed_while_replacing_keeps_one_whole_artifact(tmp_path, moment):
    program = (
        "import os, signal, sys; from collegium.core import artifacts; from pathlib import Path\n"
        "rename, count = Path.rename, int(sys.argv[2])\n"
        "def killed(self, target):\n"
        "    global count\n"
        "    count -= 1\n"
        "    if count < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return rename(self, target)\n"
        "Path.rename = killed\n"
        "with artifacts.writing(sys.argv[1], 'thing', {}, {}) as folder: (folder / 'new').write_text('new')\n"
    )
    path = make(tmp_path / "x")
    before = read_artifact(path).sha256
    renames = "1" if moment == "between the renames" else "0"
    assert (
        subprocess.run([sys.executable, "-c", LIGHT + program, path, renames], check=False).returncode
        == -signal.SIGKILL
    )
    remove_leftovers(path)
    assert read_artifact(path).sha256 == before
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_case_22_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path, monkeypatch, number):
    def full(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(artifacts.os, "fsync", full)
    with pytest.raises(RunError, match=f"{os.strerror(number)}.*Nothing was left") as raised:
        make(tmp_path / "x")
    assert raised.value.exit_code == 1
    assert names(tmp_path) == []


def test_case_22_a_full_disk_that_safetensors_reports_is_the_same_clear_error(tmp_path):
    with pytest.raises(RunError, match="No space left"), writing(tmp_path / "x", "thing", {}, {}):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert names(tmp_path) == []


def test_another_error_of_the_block_is_not_renamed(tmp_path):
    with pytest.raises(FileNotFoundError), writing(tmp_path / "x", "thing", {}, {}):
        (tmp_path / "missing").read_bytes()
    with pytest.raises(SafetensorError), writing(tmp_path / "x", "thing", {}, {}):
        raise SafetensorError("invalid header")


def test_leftovers_of_a_killed_writer_of_one_file_are_removed(tmp_path):
    (tmp_path / ".notes.building-99999").write_bytes(b"half")
    write_file(tmp_path / "notes", b"whole")
    assert names(tmp_path) == ["notes"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_file(tmp_path / "notes", b"old")
    monkeypatch.setattr(artifacts, "_fsync", lambda path: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        write_file(tmp_path / "notes", b"new")
    assert (tmp_path / "notes").read_bytes() == b"old"
    assert names(tmp_path) == ["notes"]


@settings(max_examples=20, deadline=None)
@given(position=st.integers(0, 3), flipped=st.integers(1, 255))
def test_any_changed_byte_of_a_file_is_noticed(tmp_path_factory, position, flipped):
    path = make(tmp_path_factory.mktemp("byte") / "x")
    value = bytearray(CONTENT["inner/b.bin"])
    value[position] ^= flipped
    (path / "inner/b.bin").write_bytes(value)
    with pytest.raises(ArtifactError, match=r"inner/b\.bin .*changed"):
        read_artifact(path)
    assert read_artifact(path, verify=False).kind == "thing"


def test_a_missing_file_and_a_wrong_size_are_noticed_without_hashing(tmp_path):
    path = make(tmp_path / "x")
    (path / "a.txt").write_bytes(b"longer")
    with pytest.raises(ArtifactError, match=r"a\.txt .*damaged"):
        read_artifact(path, verify=False)
    (path / "a.txt").unlink()
    with pytest.raises(ArtifactError, match=r"a\.txt is missing"):
        read_artifact(path, verify=False)


HOSTILE_NAMES = ["../secret", "inner/../../secret", "/etc/hostname", "..", "a\\..\\secret", "a\x00", "", "."]


@pytest.mark.parametrize(
    "name", [*HOSTILE_NAMES, "x" * 300, "x/" * 400_000, "\ud800"], ids=lambda name: repr(name[:12])
)
def test_case_11_a_manifest_that_names_a_file_outside_the_folder_is_refused(tmp_path, name):
    (tmp_path / "secret").write_bytes(b"one")
    path = make(tmp_path / "x")
    change_manifest(path, files={name: {"sha256": sha256_of(b"one"), "bytes": 3}})
    with pytest.raises(ArtifactError):
        read_artifact(path, verify=False)


@pytest.mark.parametrize("place", ["file", "folder", "manifest"])
def test_case_11_links_are_refused(tmp_path, place):
    path = make(tmp_path / "x")
    linked = path / {"file": "a.txt", "folder": "inner", "manifest": MANIFEST}[place]
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="holds a link|is no artifact"):
        read_artifact(path)


MALFORMED = {
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"3",
    "empty": b"",
    "deep": b'{"settings":' * 100_000,
    "deep list": b"[" * 1_000_000,
    "a huge number": b"9" * 10_000,
    "a key is missing": canonical_json({"kind": "thing", "schema_version": 1, "inputs": {}, "settings": {}}),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_manifest_is_refused(tmp_path, raw):
    path = make(tmp_path / "x")
    (path / MANIFEST).write_bytes(raw)
    with pytest.raises(ArtifactError):
        read_artifact(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": ["a.txt"]},
        {"files": {"a.txt": "abc"}},
        {"files": {"a.txt": {"sha256": "x"}}},
        {"files": {"a.txt": {"sha256": 1, "bytes": "3"}}},
        {"inputs": None},
        {"settings": []},
        {"kind": 3},
        {"kind": None},
        {"schema_version": 2},
        {"schema_version": None},
    ],
)
def test_a_manifest_with_values_of_other_types_is_refused(tmp_path, changes):
    path = make(tmp_path / "x")
    change_manifest(path, **changes)
    with pytest.raises(ArtifactError):
        read_artifact(path)


def test_a_huge_manifest_is_refused_without_reading_it(tmp_path):
    path = make(tmp_path / "x")
    os.truncate(path / MANIFEST, LARGEST_MANIFEST + 1)
    with pytest.raises(ArtifactError, match="too large"):
        read_artifact(path)
    os.truncate(path / MANIFEST, 1 << 40)  # sparse; reading it would take a terabyte of memory
    with pytest.raises(ArtifactError, match="too large"):
        read_artifact(path)


def test_another_kind_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="expected: pool"):
        read_artifact(make(tmp_path / "x"), "pool")


@settings(max_examples=50, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_canonical_json_is_one_text_that_reads_back(value):
    assert json.loads(canonical_json({"b": value, "a": 1})) == {"a": 1, "b": value}
    assert canonical_json({"b": value, "a": 1}) == canonical_json({"a": 1, "b": value})


def test_canonical_json_refuses_what_is_no_json():
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))
