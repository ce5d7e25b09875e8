"""Runs the cells of a suite: a process each, seeds side by side, and whatever was finished is not run again.

    OUT/[CASE/]seed-0/VARIANT/         a run folder, as of `collegium run` or `collegium federate`
    OUT/[CASE/]seed-0/VARIANT.log      what it said
    OUT/[CASE/]seed-0/VARIANT.failed   why it failed, if it did; the next start tries again

Cells of one case and seed run one after the other, because they use each other's work: an expert is trained once,
whatever the number of methods that need it. A cell that fails, or whose process dies, does not stop the others.
"""

import contextlib
import multiprocessing
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from collegium.benchmarks.federation import Federation
from collegium.benchmarks.kind import Kind, Outcome
from collegium.benchmarks.one_shot import OneShot
from collegium.core.artifacts import write_file
from collegium.core.errors import CollegiumError
from collegium.core.progress import say
from collegium.core.recipe import Recipe
from collegium.core.settings import Settings
from collegium.federated.recipe import FederatedRecipe
from collegium.flow.simulate import alone

KINDS: dict[type[Settings], Kind] = {Recipe: OneShot(), FederatedRecipe: Federation()}


@dataclass(frozen=True)
class Cell:
    """One variant with one seed on one case.

    Attributes:
        case: "" where the suite has none.
        folder: its run folder.
        out: of the suite.
        chosen: values of the keys that were tuned; None where the choice is not yet made.
        others: the methods beside it are rows too.
        kept: what the suite's records say of it.
    """

    case: str
    variant: str
    random_seed: int
    recipe: Recipe | FederatedRecipe
    folder: Path
    out: Path
    chosen: dict[str, Any] | None
    others: bool = False
    kept: Outcome | None = None

    @property
    def name(self) -> str:
        return f"{self.case + ', ' if self.case else ''}seed {self.random_seed}, {self.variant}"

    @property
    def kind(self) -> Kind:
        return KINDS[type(self.recipe)]

    @property
    def failure(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.failed")

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def run(self) -> None:
        """What is left of it, in this process."""
        self.kind.run(self.recipe, self.folder, self.out)

    def outcome(self) -> Outcome | None:
        """What it found, from its run folder or else from the records; None where it is not finished with exactly these
        settings. The versions may be others.
        """
        if self.chosen is None:
            return None
        made = self.kind.outcome(self.folder, self.others)
        kept = self.kept if self.kept is not None and self.kept.has_others() == self.others else None
        found = [one for one in (made, kept) if one is not None and one.of(self.recipe)]
        return max(found, key=Outcome.same_versions, default=None)

    def has_run(self) -> bool:
        """Whether its run folder is there, finished with these settings."""
        made = self.kind.outcome(self.folder, self.others)
        return made is not None and made.of(self.recipe)

    def is_finished(self) -> bool:
        """Whether there is nothing to run: it was run with these settings and the versions that are installed."""
        found = self.outcome()
        return found is not None and found.same_versions()


def run_cells(cells: list[Cell], jobs: int, threads: int | None) -> None:
    """Run the cells that are not finished; of one that fails the reason stands in its `failure`.

    Args:
        cells: those of one case and seed in the order in which they are to run.
        jobs: most processes at a time; more than there are cases × seeds bring nothing.
        threads: of each process; None = torch's own choice.

    Raises:
        InputError: another start of this suite is at work in the folder of a seed.
    """
    waiting: dict[Path, list[Cell]] = {}  # by the folder of their case and seed
    for cell in cells:
        if not cell.is_finished():
            waiting.setdefault(cell.folder.parent, []).append(cell)
    total, start = sum(len(queue) for queue in waiting.values()), time.monotonic()
    say(f"{len(cells) - total} of {len(cells)} cells are finished" if total < len(cells) else f"{total} cells")
    with contextlib.ExitStack() as folders:
        for group in waiting:
            group.mkdir(parents=True, exist_ok=True)
            folders.enter_context(alone(group))
        running: dict[Path, tuple[BaseProcess, Cell]] = {}
        try:
            done = 0
            while waiting or running:
                for group in [group for group in waiting if group not in running][: jobs - len(running)]:
                    cell = waiting[group].pop(0)
                    if not waiting[group]:
                        del waiting[group]
                    cell.failure.unlink(missing_ok=True)
                    running[group] = (_start(cell, threads), cell)
                    say(f"{cell.name} …")
                wait([process.sentinel for process, _ in running.values()])
                for group, (process, cell) in list(running.items()):
                    if process.is_alive():
                        continue
                    process.join()
                    del running[group]
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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # libraries are imported once: that takes as long as a small federation
    process = context.Process(target=_work, args=(cell, threads))
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
            cell.run()
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
