"""Runs one stage and measures it: seconds, and the peak of resident memory while it ran.

The figures stand in `stages.json` of the run folder, outside all artifacts (time never enters a hash). A stage that
was already done keeps the figures of the run that did it.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from collegium.core.artifacts import canonical_json, write_file
from collegium.core.progress import say

Result = TypeVar("Result")
FIGURES = "stages.json"
WORTH_NOTING = 0.02  # share of the earlier time below which a stage was only found done, not run


def run_stage(folder: Path, name: str, work: Callable[[], Result]) -> Result:
    """Run `work`, say so, and keep its figures under `name`."""
    say(f"{name} …")
    _reset_peak()
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    figures = stage_figures(folder)
    earlier = figures.get(name)
    if earlier is None or seconds > WORTH_NOTING * earlier["seconds"]:
        figures[name] = {"seconds": round(seconds, 3), "peak_bytes": _peak_bytes()}
        write_file(folder / FIGURES, canonical_json(figures))
    return result


def stage_figures(folder: Path) -> dict[str, dict[str, float]]:
    """Stage → seconds and peak_bytes."""
    path = folder / FIGURES
    return json.loads(path.read_bytes()) if path.is_file() else {}


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts again from what is held now
    except OSError:
        pass


def _peak_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
