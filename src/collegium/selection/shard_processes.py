"""The shards of a selection on this machine, divided among processes; kept ones are not run again.

A process opens a memory-mapped pool by its path: no features travel between processes, and no private data. Where the
features lie in memory alone, or the work is less than starting a process (about 5 s: it imports torch), the shards run
here one after the other.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from collegium.core.errors import ArtifactError, CollegiumError, RunError
from collegium.core.progress import progress_bar
from collegium.core.shapes import Embeddings, Scores
from collegium.selection.candidates import Rows, Weights
from collegium.selection.dpp import Selection
from collegium.selection.shards import (
    Question,
    ShardSelection,
    answer,
    ask,
    merge_selections,
    read_shard,
    shard_rows,
    write_shard,
)

WORTHWHILE = 1e10  # items · size · dim from which processes are started unasked; changes the time alone


def select_in_shards(
    features: Embeddings,
    log_relevance: Scores,
    size: int,
    ridge: float,
    content_hashes: list[str] | None,
    num_shards: int,
    processes: int | None = None,
    kept: Path | None = None,
    threads: int = 1,
) -> Selection:
    """Select from every shard and merge; the number of processes changes nothing but the time.

    Args:
        features, log_relevance, size, ridge, content_hashes: see `select_dpp`.
        processes: most to start; None = as many as there are CPUs, where the work is worth it.
        threads: of this process, for shards that it selects from itself, and for the merge.
        kept: folder of finished shards: those found there are not run again, new ones are added at once.

    Raises:
        InputError: see `select_dpp`; from whichever process it comes.
        RunError: a process ended without an answer.
    """
    question = ask(features, log_relevance, size, ridge, content_hashes, num_shards)
    tasks: list[_Task] = []
    found: list[ShardSelection] = []
    for shard in range(num_shards):
        done = _kept(kept, question, shard)
        if done is not None:
            found.append(done)
            continue
        rows = shard_rows(len(features), content_hashes, shard, num_shards)
        hashes = content_hashes and [content_hashes[row] for row in rows]
        tasks.append(_Task(question, shard, rows, np.asarray(log_relevance, np.float64)[rows], hashes))
    work = len(features) * features.shape[1] * size
    at_once = min(len(tasks), processes or ((os.cpu_count() or 1) if work > WORTHWHILE else 1))
    source = _source(features)
    with progress_bar("select by shard", len(tasks)) as bar:
        for shard in (
            _here(tasks, features, threads) if source is None or at_once < 2 else _elsewhere(tasks, source, at_once)
        ):
            if kept is not None:
                write_shard(shard_path(kept, shard.shard, num_shards), shard)
            found.append(shard)
            bar.advance()
    return merge_selections(found, threads)


def shard_path(kept: Path, shard: int, num_shards: int) -> Path:
    """Where a shard is kept, in words that people use: `2-of-8` is the second."""
    return kept / f"{shard + 1}-of-{num_shards}"


@dataclass(frozen=True)
class _Task:
    question: Question
    shard: int
    rows: Rows
    log_relevance: Weights  # of the rows, as are the hashes
    content_hashes: list[str] | None

    def run(self, features: Embeddings, threads: int) -> ShardSelection:
        return answer(self.question, self.shard, self.rows, features, self.log_relevance, self.content_hashes, threads)


@dataclass(frozen=True)
class _Source:
    """A memory-mapped array, by its path."""

    path: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int  # bytes

    def open(self) -> np.ndarray:
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


def _source(features: Embeddings) -> _Source | None:
    """The file behind a memory map; None for arrays in memory and for parts of a map, whose place is not known."""
    if not isinstance(features, np.memmap) or features.filename is None or not features.flags.c_contiguous:
        return None
    path = Path(features.filename)
    if path.stat().st_size != features.offset + features.nbytes:
        return None
    return _Source(str(path), features.dtype, features.shape, features.offset)


def _kept(kept: Path | None, question: Question, shard: int) -> ShardSelection | None:
    if kept is None:
        return None
    try:
        found = read_shard(shard_path(kept, shard, question.num_shards))
    except ArtifactError:
        return None
    return found if (found.question, found.shard) == (question, shard) else None


def _here(tasks: list[_Task], features: Embeddings, threads: int) -> Iterator[ShardSelection]:
    for task in tasks:
        yield task.run(features, threads)


def _elsewhere(tasks: list[_Task], source: _Source, at_once: int) -> Iterator[ShardSelection]:
    """Answers in the order in which they are ready. Whatever ends this iterator ends all its processes."""
    context = get_context("spawn")  # a fork would copy the locks of BLAS's and torch's threads without the threads
    running: dict[Connection, tuple[BaseProcess, list[_Task]]] = {}
    try:
        for index in range(at_once):
            receiver, sender = context.Pipe(duplex=False)
            mine = tasks[index::at_once]
            process = context.Process(target=_work, args=(sender, source, mine), daemon=True)
            process.start()
            sender.close()  # this side's copy, so that the end of the process can be noticed
            running[receiver] = (process, mine)
        while running:
            ready = wait(list(running))
            for receiver in [each for each in running if each in ready]:
                process, left = running[receiver]
                yield _received(receiver, process, left.pop(0))
                if not left:
                    running.pop(receiver)
                    process.join()
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()


def _received(receiver: Connection, process: BaseProcess, task: _Task) -> ShardSelection:
    try:
        result = receiver.recv()
    except (EOFError, OSError):  # OSError: it ended in the middle of a message
        process.join()
        raise RunError(
            f"The process of shard {task.shard + 1}/{task.question.num_shards} ended without an answer.",
            got=f"exit code {process.exitcode}",
            do="run the same command again, with fewer --processes if memory ran out",
        ) from None
    if isinstance(result, CollegiumError):
        raise result
    return result


def _work(sender: Connection, source: _Source, tasks: list[_Task]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the one that started this ends it
    for task in tasks:
        try:
            result = task.run(source.open(), threads=1)
        except CollegiumError as error:
            result = error
        except Exception as error:  # whatever it is, it is told once, by the process that waits for the answer
            name = f"{task.shard + 1}/{task.question.num_shards}"
            result = RunError(f"Shard {name} failed.", got=f"{type(error).__name__}: {error}")
        sender.send(result)
