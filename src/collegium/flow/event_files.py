"""The metrics of a federation's rounds as TensorBoard event files, where tensorboard is installed.

A run that goes on writes another file beside the first, and says from which round on its figures take the place of
those that a killed run had already written.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
TAGS = {  # of metrics.jsonl
    "accuracy": "clients/accuracy",
    "global_accuracy": "clients/accuracy on all examples",
    "accuracy_with_prior": "clients/accuracy with the batch",
    "accuracy_with_true_prior": "clients/accuracy with the true class shares",
    "accuracy_of_newcomers": "clients/accuracy of newcomers",
    "answered": "round/clients that answered",
    "bytes_down": "round/bytes down",
    "bytes_up": "round/bytes up",
}


@contextmanager
def event_files(folder: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yields what writes the lines of rounds below `folder`; it does nothing where tensorboard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        yield lambda line: None
        return
    from torch.utils.tensorboard import SummaryWriter

    opened: list[SummaryWriter] = []

    def write(line: Mapping[str, Any]) -> None:
        server_round = line["server_round"]
        if not opened:
            opened.append(SummaryWriter(str(folder / FOLDER), purge_step=server_round))
        for key, tag in TAGS.items():
            if key in line:
                opened[0].add_scalar(tag, line[key], server_round)
        if len(line.get("utilisation", [])) > 1:
            for expert, share in enumerate(line["utilisation"]):
                opened[0].add_scalar(f"use of experts/{expert}", share, server_round)

    try:
        yield write
    finally:
        for writer in opened:
            writer.close()
