"""Reads the `summary.json` of a run folder into frozen models: a page never meets a value of another shape.

`flow` writes the file; this side reads it leniently: only the project and the accuracies must be there,
unknown keys are passed over, and every other part may be missing (a run that was stopped, an older version,
another task). What is there must have the right type: fractions between 0 and 1, finite numbers, texts. All
faults are reported together with the path of their key.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from collegium.core.errors import ArtifactError

SUMMARY = "summary.json"
MAP_FOLDER, MAP = "map", "map.json"  # beside the summary: points would make it long
LARGEST_SUMMARY = 64 << 20  # bytes
_DO = "run `collegium run RECIPE` again with the same recipe; finished stages are not repeated"

Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Cosine = Annotated[float, Field(ge=-1.001, le=1.001, allow_inf_nan=False)]
Coordinate = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Points = list[tuple[Coordinate, Coordinate]]
ByDomain = dict[str, Fraction | None]  # accuracy by domain, and `mean`


class _Part(BaseModel):
    """Base of all parts: frozen, and an unknown key is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Owner(_Part):
    data: Any = None  # catalogue name, path, or one of these for each split
    prompt: str | None = None
    labels: list[str] | None = None
    labels_published: bool | None = None


class Pool(_Part):
    data: Any = None
    items: Count | None = None
    duplicates_removed: Count | None = None


class MethodAccuracy(_Part):
    told: ByDomain = {}
    union: ByDomain = {}


class RoutingShares(_Part):
    """`by_layer[layer][domain]` = shares over `experts` of the tokens of that domain's texts."""

    sequence: Fraction | None = None
    experts: list[str] = []
    by_layer: dict[str, dict[str, list[Fraction]]] = {}


class OwnerCoverage(_Part):
    """`spread`: mean cosine of two proxies; `nearest`: mean cosine of a pool item to the nearest proxy."""

    proxies: Count
    shared: Count | None = None
    spread: Cosine | None = None
    nearest: Cosine | None = None


class Coverage(_Part):
    """How the proxies lie in the pool; `compared` of its items stand for it, `spread` is that of these."""

    compared: Count | None = None
    spread: Cosine | None = None
    owners: dict[str, OwnerCoverage] = {}


class PoolMap(_Part):
    """Points in two dimensions: a sample of the pool, proxies of one owner alone, proxies of several."""

    pool: Points = []
    owners: dict[str, Points] = {}
    shared: Points = []


class Stage(_Part):
    seconds: Amount | None = None
    peak_bytes: Count | None = None


class LedgerEntry(_Part):
    """One release of an owner. A missing ε is shown as not stated, never as silence."""

    what: str = "not stated"
    from_data: str = "not stated"
    unit: str = "not stated"
    sensitivity: str | float = "not stated"
    mechanism: str | None = "not stated"
    epsilon: str | float = "not stated"
    reveals: str = "not stated"


class JointTuning(_Part):
    kept: bool | None = None
    accuracy_before: Fraction | None = None
    accuracy_after: Fraction | None = None


class Fallback(_Part):
    enabled: bool | None = None
    pool_agreement_without: Fraction | None = None
    pool_agreement_with: Fraction | None = None


class Unification(_Part):
    router_init: str | None = None
    temperature: float | list[float] | None = None
    held_out_proxies: Count | None = None
    joint_tuning: JointTuning | None = None
    fallback: Fallback | None = None
    flags: list[str] = []


class RunSummary(_Part):
    """The summary of one run: accuracies as fractions, times in seconds, sizes in bytes."""

    project: str
    accuracy: dict[str, MethodAccuracy] = {}
    intervals: dict[str, dict[str, dict[str, tuple[Fraction, Fraction] | None]]] = {}  # method, labels, domain
    perplexity: dict[str, dict[str, Annotated[float, Field(ge=1, allow_inf_nan=False)]]] = {}
    random_seed: int | None = None
    task: str | None = None
    created_with: dict[str, str | int] = {}
    owners: dict[str, Owner] = {}
    pool: Pool | None = None
    examples: dict[str, Annotated[int, Field(ge=1)]] = {}
    routing: RoutingShares | None = None
    coverage: Coverage | None = None
    pool_map: PoolMap | None = None
    stages: dict[str, Stage] = {}
    released_bytes: dict[str, Count] = {}
    ledger: dict[str, list[LedgerEntry]] = {}
    unification: Unification | None = None
    settings: dict[str, Any] = {}
    hashes: dict[str, str] = {}

    @model_validator(mode="after")
    def _has_results(self) -> "RunSummary":
        if not self.accuracy and not self.perplexity:
            raise ValueError("neither accuracy nor perplexity is there")
        return self

    @property
    def domains(self) -> list[str]:
        """Every domain with an accuracy or a perplexity, in the owners' order."""
        measured = [
            name
            for method in self.accuracy.values()
            for by_domain in (method.union, method.told)
            for name in by_domain
            if name != "mean"
        ]
        measured += [name for found in self.perplexity.values() for name in found if name != "mean"]
        named = [name for name in self.owners if name in set(measured)]
        return list(dict.fromkeys(named + measured))

    def mean(self, method: str, labels: str) -> float | None:
        """Macro average over domains; taken from the file, else from the domains that are there."""
        by_domain = self.by_domain(method, labels)
        if by_domain.get("mean") is not None:
            return by_domain["mean"]
        values = [value for value in by_domain.values() if value is not None]
        return sum(values) / len(values) if values else None

    def by_domain(self, method: str, labels: str) -> ByDomain:
        """Accuracies of one method; `labels` is `union` or `told`."""
        accuracy = self.accuracy.get(method, MethodAccuracy())
        return {"union": accuracy.union, "told": accuracy.told}[labels]


def read_run_summary(run_folder: str | Path) -> RunSummary:
    """Read `summary.json` of a run folder, and its map of the pool where there is one.

    Raises:
        ArtifactError: no such folder, no summary in it, or a malformed one; it says what to do.
    """
    path = Path(run_folder) / SUMMARY
    if not Path(run_folder).is_dir():
        raise ArtifactError(f"There is no run folder {run_folder}.", do="check the path")
    if not path.is_file():
        raise ArtifactError(
            f"{run_folder} holds no {SUMMARY}: the run has not ended, or this is another kind of folder.",
            expected="the folder that `collegium run` wrote",
            do=_DO,
        )
    values = _read_json(path)
    points = Path(run_folder) / MAP_FOLDER / MAP
    if isinstance(values, dict) and points.is_file():
        values["pool_map"] = _read_json(points)
    return parse_summary(values, source=str(path))


def parse_summary(values: object, source: str = SUMMARY) -> RunSummary:
    """Check the content of a summary; a `RunSummary` is returned as it is.

    Raises:
        ArtifactError: every fault with its key's path.
    """
    if isinstance(values, RunSummary):
        return values
    if not isinstance(values, Mapping):
        raise ArtifactError(
            f"{source} holds no summary.", got=type(values).__name__, expected="a mapping of keys", do=_DO
        )
    try:
        return RunSummary.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        lines = [
            f"{'.'.join(ascii(part).strip(chr(39)) for part in fault['loc'])}: {fault['msg']}" for fault in faults[:20]
        ]
        if len(faults) > len(lines):
            lines.append(f"and {len(faults) - len(lines)} more")
        raise ArtifactError(f"{source} is malformed:\n    " + "\n    ".join(lines), do=_DO) from None


def _read_json(path: Path) -> object:
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_SUMMARY + 1)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read.", got=error.strerror, do="check its permissions") from None
    if len(raw) > LARGEST_SUMMARY:
        raise ArtifactError(f"{path} is too large.", expected=f"at most {LARGEST_SUMMARY} bytes")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        got = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ArtifactError(f"{path} is no valid JSON.", got=got, do=_DO) from None
