"""Artifacts: folders with a manifest, written atomically, never edited in place.

`manifest.json` holds `{kind, schema_version, inputs, settings, files: {path: {sha256, bytes}}}` in canonical JSON;
the sha256 of that file is the hash of the artifact. A folder is built under a temporary name beside its
destination, every file is flushed to disk, and one rename makes it visible: whoever is killed, or whose disk is
full, leaves nothing half-written. Leftovers of a killed process are removed by the next writer.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError

from collegium.core.errors import ArtifactError, RunError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 20  # bytes
LONGEST_NAME = 1024  # characters of a file's path in its artifact


@dataclass(frozen=True)
class Artifact:
    """An artifact on disk: its folder, its manifest and its hash."""

    path: Path
    kind: str
    inputs: dict[str, str]
    settings: dict[str, Any]
    files: dict[str, dict[str, Any]]
    sha256: str


@contextmanager
def writing(
    path: str | Path, kind: str, inputs: dict[str, str], settings: dict[str, Any], time: tuple[int, int] | None = None
) -> Iterator[Path]:
    """Yield an empty temporary folder; when the block ends without an error it becomes the artifact at `path`.

    An artifact of the same kind at `path` is replaced in two renames, the very same one is left as it is; anything
    else there is refused.

    Args:
        time: (access, modification) to set on everything, for artifacts whose times must tell nothing.

    Raises:
        ArtifactError: `path` holds something that is no artifact of this kind.
        RunError: the disk is full or not writable; nothing is left behind.
    """
    path = Path(path)
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or _kind_of(path) == kind)):
        raise ArtifactError(
            f"{path} already holds something else.",
            expected=f"nothing, or a {kind}",
            do="name another folder",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path)
        building = path.parent / f".{path.name}.building-{os.getpid()}"
        building.mkdir()
        try:
            yield building
            _seal(building, kind, inputs, settings)
            if time is not None:
                for file in [*building.rglob("*"), building]:
                    os.utime(file, time)
            _replace(building, path)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise writing_error(path, error) from error


def writing_error(path: Path, error: OSError | SafetensorError) -> Exception:
    """The clear error of a full or read-only disk; any other error as it is."""
    reason = _errno_of(error)
    if reason in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
        return RunError(
            f"{path} could not be written: {os.strerror(reason)}. Nothing was left behind.",
            do="free some space or name another folder, then run the same command again",
        )
    return error


def read_artifact(path: str | Path, kind: str | None = None, verify: bool = True) -> Artifact:
    """Read the manifest at `path` and, with `verify`, check the size and hash of every file that it names.

    Raises:
        ArtifactError: no manifest, another kind, another schema version, a path that leaves the folder, a link,
            a file that is missing or differs.
    """
    artifact = _read_manifest(Path(path))
    if kind is not None and artifact.kind != kind:
        raise ArtifactError(f"{path} is another kind of artifact.", got=artifact.kind, expected=kind)
    for name, entry in artifact.files.items():
        try:
            _check_file(artifact.path, name, entry, verify)
        except OSError as error:
            raise ArtifactError(
                f"{path} names a file that cannot be read.", got=f"{name[:80]!r}: {error.strerror}"
            ) from None
    return artifact


def finished(
    path: str | Path, kind: str, inputs: dict[str, str], settings: dict[str, Any] | None = None
) -> Artifact | None:
    """The intact artifact at `path` if it was made from these inputs (and settings, where they are given)."""
    try:
        artifact = read_artifact(path, kind)
    except ArtifactError:
        return None
    same = artifact.inputs == inputs and (settings is None or artifact.settings == settings)
    return artifact if same else None


def remove_leftovers(path: Path) -> None:
    """Remove what a killed writer of `path` left beside it; put back what it had moved away."""
    name = glob.escape(path.name)
    for leftover in path.parent.glob(f".{name}.building-*"):
        if not _is_alive(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    for replaced in path.parent.glob(f".{name}.replaced-*"):
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(path)


def canonical_json(value: object) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_of(value: bytes | Path) -> str:
    """sha256 of bytes or of a file's content, in hex."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    with value.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write one file atomically: temporary name, fsync, rename."""
    for leftover in path.parent.glob(f".{path.name}.building-*"):
        leftover.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.building-{os.getpid()}")
    try:
        temporary.write_bytes(content)
        _fsync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _fsync(path.parent)


def _seal(folder: Path, kind: str, inputs: dict[str, str], settings: dict[str, Any]) -> None:
    files = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        _fsync(file)
        files[file.relative_to(folder).as_posix()] = {"sha256": sha256_of(file), "bytes": file.stat().st_size}
    manifest = {
        "kind": kind,
        "schema_version": SCHEMA_VERSION,
        "inputs": inputs,
        "settings": settings,
        "files": files,
    }
    (folder / MANIFEST).write_bytes(canonical_json(manifest))
    _fsync(folder / MANIFEST)
    _fsync(folder)


def _replace(building: Path, path: Path) -> None:
    if _is_intact(path) and (path / MANIFEST).read_bytes() == (building / MANIFEST).read_bytes():
        return
    replaced = path.parent / f".{path.name}.replaced-{os.getpid()}"
    if path.exists():
        path.rename(replaced)
    building.rename(path)
    _fsync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _is_alive(building: Path) -> bool:
    """Whether another process, whose number ends the name, is still at work there."""
    number = building.name.rpartition("-")[2]
    if not number.isdigit() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _errno_of(error: OSError | SafetensorError) -> int | None:
    """safetensors' errors carry the number in their text alone."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


def _is_intact(path: Path) -> bool:
    try:
        read_artifact(path)
    except ArtifactError:
        return False
    return True


def _read_manifest(path: Path) -> Artifact:
    manifest_path = path / MANIFEST
    if not manifest_path.is_file() or manifest_path.is_symlink():
        raise ArtifactError(
            f"{path} is no artifact of Collegium: it has no {MANIFEST}.",
            do="check the path; was the command finished?",
        )
    with manifest_path.open("rb") as file:
        raw = file.read(LARGEST_MANIFEST + 1)
    if len(raw) > LARGEST_MANIFEST:
        raise ArtifactError(f"{manifest_path} is too large.", expected=f"at most {LARGEST_MANIFEST} bytes")
    return _parse(path, raw)


def _kind_of(path: Path) -> str | None:
    try:
        return _read_manifest(path).kind  # a damaged artifact of this kind may be replaced
    except ArtifactError:
        return None


def _parse(path: Path, raw: bytes) -> Artifact:
    wrong = ArtifactError(f"{path / MANIFEST} is malformed.", do="get the artifact again from whoever made it")
    try:
        manifest = json.loads(raw)
        version = manifest["schema_version"]
        if version != SCHEMA_VERSION:
            raise ArtifactError(f"{path} has another schema version.", got=version, expected=SCHEMA_VERSION)
        artifact = Artifact(
            path=path,
            kind=manifest["kind"],
            inputs=manifest["inputs"],
            settings=manifest["settings"],
            files=manifest["files"],
            sha256=sha256_of(raw),
        )
        mappings = (artifact.inputs, artifact.settings, artifact.files, *artifact.files.values())
        if not isinstance(artifact.kind, str) or not all(isinstance(mapping, dict) for mapping in mappings):
            raise wrong
        if not all(isinstance(value, str) for value in artifact.inputs.values()):
            raise wrong
        if not all({"sha256", "bytes"} <= entry.keys() for entry in artifact.files.values()):
            raise wrong
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise wrong from None
    return artifact


def _check_file(folder: Path, name: str, entry: dict[str, Any], verify: bool) -> None:
    if len(name) > LONGEST_NAME:  # a path of half a million steps would take hours to check
        raise ArtifactError(f"{folder} names a file with a path that is too long.", got=repr(name[:80]))
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\\" in name or "\x00" in name:
        raise ArtifactError(f"{folder} names a file outside itself.", got=repr(name), do="refuse this artifact")
    file = folder / relative
    steps = [folder.joinpath(*relative.parts[: i + 1]) for i in range(len(relative.parts))]
    if any(step.is_symlink() for step in steps):
        raise ArtifactError(f"{folder} holds a link.", got=name, expected="plain files only")
    if not file.is_file():
        raise ArtifactError(f"{folder} is not complete: {name} is missing.", do="copy the whole folder again")
    size = file.stat().st_size
    if size != entry["bytes"]:
        raise ArtifactError(f"{name} in {folder} is damaged.", got=f"{size} bytes", expected=f"{entry['bytes']} bytes")
    if verify and sha256_of(file) != entry["sha256"]:
        raise ArtifactError(f"{name} in {folder} was changed: its sha256 is not the manifest's.")
