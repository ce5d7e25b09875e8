"""The owner's memory of what it has released. It never leaves the owner.

Two routing releases over the same data with different proxies give the number of private examples and their mean
exactly (r1 − r2 = m (μ1 − μ2) / (N + m), METHODS §1). So a second, different routing release over data that shares
a record with an earlier one is refused unless a mechanism protects it. The same release may be made again.
"""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collegium.core.artifacts import canonical_json, write_file
from collegium.core.errors import ArtifactError, ReleaseRefused

RELEASES = "releases.json"


@dataclass(frozen=True)
class ReleaseStore:
    """A folder of the owner's; readable by its owner alone.

    Attributes:
        work: where the owner's unreleased work stays to be used again, which several memories may share; None = there.
    """

    folder: Path
    work: Path | None = None

    def check_and_record(self, project: str, routing_digest: str, records: Sequence[str], mechanism: str) -> None:
        """Refuse a release that tells too much, otherwise remember it, before a byte of it is written.

        Args:
            routing_digest: sha256 of the routing vectors as they will be released.
            records: content hashes of the private examples in them.
            mechanism: `none`, or the mechanism that protects this release.

        Raises:
            ReleaseRefused: an earlier, different release shares private records, and no mechanism protects this one.
        """
        with self._locked():
            releases = self._read()
            mine = set(records)
            for release in releases:
                if release["routing"] == routing_digest:
                    return
            for release in releases:
                shared = mine.intersection(release["records"])
                if shared and "none" in (mechanism, release["mechanism"]):
                    raise ReleaseRefused(
                        "A second routing release over the same private examples would give away their number and "
                        f"their mean: {len(shared)} of them are in a release for project {release['project']!r}.",
                        do="send that contribution again, or use data that was never released "
                        f"(the owner's memory of releases is {self.folder})",
                    )
            releases.append(
                {
                    "project": project,
                    "routing": routing_digest,
                    "mechanism": mechanism,
                    "records": sorted(mine),
                }
            )
            write_file(self.folder / RELEASES, canonical_json(releases))

    def remember(self, name: str, value: str) -> None:
        """Keep a local note, such as the hash of a finished contribution."""
        with self._locked():
            write_file(self.folder / f"{name}.txt", value.encode())

    def recall(self, name: str) -> str | None:
        path = self.folder / f"{name}.txt"
        return path.read_text() if path.is_file() else None

    @contextmanager
    def working(self) -> Iterator[None]:
        """One at a time at the unreleased work; the next one waits, and finds it done."""
        with (self.work_folder() / "work.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def work_folder(self) -> Path:
        """The folder of the owner's unreleased work, made where it is missing."""
        return _private(self.work or self.folder)

    def _read(self) -> list[dict]:
        path = self.folder / RELEASES
        if not path.is_file():
            return []
        try:
            releases = json.loads(path.read_bytes())
            whole = isinstance(releases, list) and all(
                {"project", "routing", "mechanism", "records"} == release.keys() for release in releases
            )
            if not whole or not all(isinstance(release["records"], list) for release in releases):
                raise ValueError
            return releases
        except (ValueError, AttributeError, RecursionError):
            raise ArtifactError(
                f"The memory of releases {path} is damaged.",
                do="restore it from a backup; without it a release that tells too much cannot be noticed",
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, so that two commands at once cannot both pass the check."""
        with (_private(self.folder) / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _private(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder
