"""Runs one stage and measures it: seconds, and the peak of resident memory while it ran.

The figures stand in `stages.json` of the run folder, outside all artifacts (time never enters a hash). A stage that
found its artifact already made keeps the figures of the run that made it.
"""

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from collegium.core.artifacts import MANIFEST, write_file
from collegium.core.progress import say

Result = TypeVar("Result")
FIGURES = "stages.json"


def run_stage(folder: Path, name: str, artifact: Path, work: Callable[[], Result]) -> Result:
    """Run `work`, say so, and keep its figures under `name` where it made the artifact at `artifact` anew."""
    say(f"{name} …")
    before = _identity(artifact)
    _reset_peak()
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    figures = stage_figures(folder)
    if name not in figures or _identity(artifact) != before:
        figures[name] = {"seconds": round(seconds, 3), "peak_bytes": peak_bytes()}
        write_file(folder / FIGURES, json.dumps(figures).encode())  # in the order of the stages
    return result


def stage_figures(folder: Path) -> dict[str, dict[str, int | float]]:
    """Stage → seconds and peak_bytes."""
    path = folder / FIGURES
    return json.loads(path.read_bytes()) if path.is_file() else {}


def _identity(artifact: Path) -> tuple[int, int] | None:
    try:
        status = (artifact / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts again from what is held now


def peak_bytes() -> int:
    """Most resident memory of this process so far, or since `run_stage` began the stage at work."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
