"""Runs the cells of a suite: a process each, seeds side by side, and whatever was finished is not run again.

    OUT/seed-0/work/            pools, selections, experts and answers, which all variants of that seed share
    OUT/seed-0/VARIANT/         a run folder, as of `collegium run`
    OUT/seed-0/VARIANT.log      what it said
    OUT/seed-0/VARIANT.failed   why it failed, if it did; the next start tries again

Cells of one seed run one after the other, because they use each other's work: an expert is trained once, whatever the
number of methods that need it. A cell that fails, or whose process dies, does not stop the others.
"""

import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from collegium.core.artifacts import write_file
from collegium.core.errors import CollegiumError
from collegium.core.progress import say
from collegium.core.recipe import Recipe
from collegium.flow.simulate import alone, simulate
from collegium.flow.summary import PACKAGES, SUMMARY


@dataclass(frozen=True)
class Cell:
    """One variant with one seed.

    Attributes:
        folder: its run folder.
    """

    variant: str
    random_seed: int
    recipe: Recipe
    folder: Path

    @property
    def name(self) -> str:
        return f"seed {self.random_seed}, {self.variant}"

    @property
    def failure(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.failed")

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def summary(self) -> dict | None:
        """Its summary; None where it is not finished with exactly these settings and these versions."""
        try:
            found = json.loads((self.folder / SUMMARY).read_bytes())
            same = found["settings"] == self.recipe.model_dump(mode="json") and all(
                found["created_with"][package] == version(package) for package in PACKAGES
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if same else None


def run_cells(cells: list[Cell], jobs: int, threads: int | None) -> None:
    """Run the cells that are not finished; of one that fails the reason stands in its `failure`.

    Args:
        cells: those of one seed in the order in which they are to run.
        jobs: most processes at a time; more than there are seeds bring nothing.
        threads: of each process; None = torch's own choice.

    Raises:
        InputError: another start of this suite is at work in the folder of a seed.
    """
    waiting: dict[int, list[Cell]] = {}
    for cell in cells:
        if cell.summary() is None:
            waiting.setdefault(cell.random_seed, []).append(cell)
    total, start = sum(len(queue) for queue in waiting.values()), time.monotonic()
    say(f"{len(cells) - total} of {len(cells)} cells are finished" if total < len(cells) else f"{total} cells")
    with contextlib.ExitStack() as folders:
        for queue in waiting.values():
            queue[0].folder.parent.mkdir(parents=True, exist_ok=True)
            folders.enter_context(alone(queue[0].folder.parent))
        running: dict[int, tuple[BaseProcess, Cell]] = {}
        try:
            done = 0
            while waiting or running:
                for seed in [seed for seed in waiting if seed not in running][: jobs - len(running)]:
                    cell = waiting[seed].pop(0)
                    if not waiting[seed]:
                        del waiting[seed]
                    cell.failure.unlink(missing_ok=True)
                    running[seed] = (_start(cell, threads), cell)
                    say(f"{cell.name} …")
                wait([process.sentinel for process, _ in running.values()])
                for seed, (process, cell) in list(running.items()):
                    if process.is_alive():
                        continue
                    process.join()
                    del running[seed]
                    done += 1
                    left = (time.monotonic() - start) / done * (total - done)
                    reason = _failure(cell, process.exitcode)
                    ended = "done" if reason is None else f"failed: {reason.splitlines()[0]}"
                    say(f"{cell.name}: {ended} ({done} of {total}, about {left / 60:.0f} minutes left)")
        finally:
            for process, _ in running.values():
                process.terminate()
                process.join()


def _start(cell: Cell, threads: int | None) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(cell, threads))
    process.start()
    return process


def _work(cell: Cell, threads: int | None) -> None:
    """The child's side: one run, and its error in a file. It ends with its parent, however that ends."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    with cell.log.open("w") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
        os.dup2(log.fileno(), sys.stdout.fileno())
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            simulate(cell.recipe, cell.folder, cell.folder.parent / "work")
        except CollegiumError as error:
            write_file(cell.failure, str(error).encode())
            sys.exit(error.exit_code)
        except Exception as error:
            traceback.print_exc()
            write_file(cell.failure, f"{type(error).__name__}: {error}\n  its log: {cell.log}".encode())
            sys.exit(1)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _failure(cell: Cell, code: int | None) -> str | None:
    if code == 0:
        return None
    try:
        return cell.failure.read_text(encoding="utf-8")
    except OSError:  # it had no chance to say why
        reason = f"Its process ended with code {code}.\n  its log: {cell.log}"
        write_file(cell.failure, reason.encode())
        return reason
