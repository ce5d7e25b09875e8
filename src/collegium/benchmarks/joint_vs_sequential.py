"""Gate and experts trained together or one after the other: the smallest set-up in which it makes a difference.

The claim of DDOME's theory (arXiv:2306.08586): with top-1 routing, linear experts and Gaussian inputs, training gate
and experts one after the other leaves an expected loss of Ω(1), training them jointly does not. Ours is a set-up of our
own to look at that claim, not the published proof:

* inputs x ~ N(0, I_d); K clusters, z(x) = argmax_k u_k·x with orthonormal u_k; answers y = w_z(x)·x without noise, the
  w_k random with length 1. So a linear gate V = U and linear experts W = (w_k) answer everything right.
* a gate V and experts W, both K × d, at first small and random. While something is trained, the loss is that of the
  mixture, −log Σ_k softmax(Vx)_k N(y; w_k·x, σ²) (Jacobs, Jordan, Nowlan and Hinton 1991), or, for `joint, top-1`, the
  squared error of the chosen expert's answer, whose weight of 1 lets the gate's gradient through (moe/router.py).
* **joint**: V and W in every step. **experts first**: W under a random fixed gate with top-1 routing, then V with W as
  it is. **gate first**: V with random fixed experts, then W under that gate, top-1. **experts first, clusters known**:
  the first phase is told z(x), as if every expert had data of its own. Each sees the same number of fresh examples; a
  phase has half of them. **true gate**: experts alone, under V = U; nothing can be better.

What is measured is the squared error with top-1 routing on fresh examples, divided by the mean of y²: 0 is perfect, 1
is as good as answering 0. One expert for everything leaves about 1 − 1/K for large d.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from collegium.benchmarks.statistics import mean_std
from collegium.core.artifacts import write_file
from collegium.core.progress import tracked
from collegium.core.random_streams import stream_seed
from collegium.flow.stages import peak_bytes
from collegium.flow.summary import created_with
from collegium.reports.federated_curves import COLOURS, DASHES, STYLE, save_figure

NAME = "joint-vs-sequential"
METHODS = ("joint", "joint, top-1", "experts first", "gate first", "experts first, clusters known", "true gate")
EXPERTS = 4
SIGMA = 0.3  # of the mixture; y has about the standard deviation 1
BATCH, TEST = 256, 4096  # examples
LEARNING_RATE = 0.01  # of Adam
MEASURED = 25  # times in a run


@dataclass(frozen=True)
class Size:
    """How much is run; the quick one takes less than 45 s on one core."""

    dimensions: tuple[int, ...]
    steps: int
    seeds: int


FULL = Size(dimensions=(4, 8, 16, 32, 64, 128), steps=4000, seeds=10)
QUICK = Size(dimensions=(4, 16, 64), steps=600, seeds=3)


@dataclass(frozen=True)
class Run:
    """One method in one dimension: step → loss of each seed."""

    method: str
    dimension: int
    losses: dict[int, list[float]]


def run_joint_vs_sequential(out: Path, quick: bool = False) -> str:
    """Run all of it; writes `table.md`, `rows.jsonl` and `loss.png`, `loss.svg` in `out`. The table, in Markdown."""
    size = QUICK if quick else FULL
    runs, seconds = [], []
    for method, dimension in tracked([(m, d) for m in METHODS for d in size.dimensions], NAME):
        start = time.perf_counter()
        runs.append(train(method, dimension, size))
        seconds.append(time.perf_counter() - start)
    table = _table(runs, size)
    out.mkdir(parents=True, exist_ok=True)
    records = [_record(run, size, one) for run, one in zip(runs, seconds, strict=True)]
    write_file(out / "rows.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())
    write_file(out / "table.md", table.encode())
    save_figure(_figure(runs, size), out / "loss")
    return table


def train(method: str, dimension: int, size: Size) -> Run:
    """All seeds side by side; they share nothing but the arithmetic.

    Args:
        dimension: d, at least the number of experts.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(0, NAME, str(dimension)))  # every method meets the same examples
        world = _World(size.seeds, dimension)
        gate, experts = (0.1 * torch.randn(size.seeds, EXPERTS, dimension) / dimension**0.5 for _ in range(2))
        long_experts = torch.nn.functional.normalize(torch.randn_like(experts), dim=2)
        test = world.draw(TEST)
        if method == "true gate":
            gate = world.gate.clone()
        if method == "gate first":
            experts = long_experts  # with small ones there would be nothing to choose
        losses, step = {}, 0
        for trained, loss, steps in _phases(method, gate, experts, world.gate, size.steps):
            for one in (gate, experts):
                one.requires_grad_(any(one is other for other in trained))
            optimizer = torch.optim.Adam(trained, LEARNING_RATE)
            for _ in range(steps):
                if step % (size.steps // MEASURED) == 0:
                    losses[step] = _top_1_loss(gate, experts, test)
                optimizer.zero_grad()
                loss(gate, experts, *world.draw(BATCH)).backward()
                optimizer.step()
                step += 1
        losses[step] = _top_1_loss(gate, experts, test)
    return Run(method, dimension, losses)


Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Phase = tuple[list[Tensor], Loss, int]


def _phases(method: str, gate: Tensor, experts: Tensor, true: Tensor, steps: int) -> list[Phase]:
    """What is trained, by which loss, for how many steps; under a fixed gate by the chosen expert's squared error."""
    half = steps // 2

    def of_known_clusters(gate: Tensor, experts: Tensor, inputs: Tensor, answers: Tensor) -> Tensor:
        return _chosen(true, experts, inputs, answers)

    return {
        "joint": [([gate, experts], _mixture, steps)],
        "joint, top-1": [([gate, experts], _chosen, steps)],
        "experts first": [([experts], _chosen, half), ([gate], _mixture, half)],
        "gate first": [([gate], _mixture, half), ([experts], _chosen, half)],
        "experts first, clusters known": [([experts], of_known_clusters, half), ([gate], _mixture, half)],
        "true gate": [([experts], _chosen, steps)],
    }[method]


class _World:
    """The clusters and the right answers of every seed."""

    def __init__(self, seeds: int, dimension: int):
        self.seeds, self.dimension = seeds, dimension
        self.gate = torch.linalg.qr(torch.randn(seeds, dimension, EXPERTS)).Q.transpose(1, 2)  # orthonormal rows
        self.experts = torch.nn.functional.normalize(torch.randn(seeds, EXPERTS, dimension), dim=2)

    def draw(self, examples: int) -> tuple[Float[Tensor, "seeds examples dim"], Float[Tensor, "seeds examples"]]:
        inputs = torch.randn(self.seeds, examples, self.dimension)
        cluster = (inputs @ self.gate.transpose(1, 2)).argmax(dim=2, keepdim=True)
        return inputs, (inputs @ self.experts.transpose(1, 2)).gather(2, cluster).squeeze(2)


def _mixture(gate: Tensor, experts: Tensor, inputs: Tensor, answers: Tensor) -> Tensor:
    errors = answers.unsqueeze(2) - inputs @ experts.transpose(1, 2)  # [seeds, examples, experts]
    shares = torch.log_softmax(inputs @ gate.transpose(1, 2), dim=2)
    return -torch.logsumexp(shares - errors**2 / (2 * SIGMA**2), dim=2).mean(dim=1).sum()


def _chosen(gate: Tensor, experts: Tensor, inputs: Tensor, answers: Tensor) -> Tensor:
    shares = torch.softmax(inputs @ gate.transpose(1, 2), dim=2)
    best = shares.argmax(dim=2, keepdim=True)
    share = shares.gather(2, best)
    chosen = (inputs @ experts.transpose(1, 2)).gather(2, best) * (1 + (share - share.detach()))
    return ((answers - chosen.squeeze(2)) ** 2).mean(dim=1).sum()


def _top_1_loss(gate: Tensor, experts: Tensor, test: tuple[Tensor, Tensor]) -> list[float]:
    inputs, answers = test
    with torch.no_grad():
        best = (inputs @ gate.transpose(1, 2)).argmax(dim=2, keepdim=True)
        found = (inputs @ experts.transpose(1, 2)).gather(2, best).squeeze(2)
        return (((answers - found) ** 2).mean(dim=1) / (answers**2).mean(dim=1)).tolist()


def _table(runs: list[Run], size: Size) -> str:
    header = ["relative loss", *(f"d = {dimension}" for dimension in size.dimensions)]
    lines = [header, ["---", *("---:" for _ in size.dimensions)]]
    for method in METHODS:
        cells = [_cell(run.losses[size.steps]) for run in runs if run.method == method]
        lines.append([method, *cells])
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return (
        f"{body}\n\nTop-1 squared error over the mean of y² after {size.steps:,} steps of {BATCH} examples, "
        f"K = {EXPERTS}: mean ± std over {size.seeds} seeds, and the worst of them. One expert alone leaves about "
        f"{1 - 1 / EXPERTS:.2f} for large d.\n"
    )


def _cell(losses: list[float]) -> str:
    mean, std = mean_std(losses)
    return f"{mean:.3f} ± {std or 0:.3f} ({max(losses):.2f})"


def _record(run: Run, size: Size, seconds: float) -> dict[str, Any]:
    versions = created_with()
    return {
        "benchmark": NAME,
        "method": run.method,
        "case": {"dimension": run.dimension, "experts": EXPERTS, "steps": size.steps, "batch": BATCH},
        "random_seed": list(range(size.seeds)),
        "threads": versions["threads"],
        "seconds": [round(seconds, 3)],
        "peak_bytes": peak_bytes(),
        "metrics": {"relative_loss": run.losses[size.steps], "by_step": run.losses},
        "versions": versions,
    }


def _figure(runs: list[Run], size: Size) -> Figure:
    """Loss against the step in the largest dimension, and at the end against the dimension; a line for each seed's
    mean, dots for the seeds.
    """
    largest = size.dimensions[-1]
    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(8.5, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for number, method in enumerate(METHODS):
            colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
            style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.6}
            own = {run.dimension: run.losses for run in runs if run.method == method}
            steps = own[largest]
            left.plot(list(steps), [np.mean(found) for found in steps.values()], **style)
            ends = {dimension: losses[size.steps] for dimension, losses in own.items()}
            right.plot(list(ends), [np.mean(found) for found in ends.values()], label=method, **style)
            for dimension, found in ends.items():
                right.plot([dimension] * len(found), found, ".", color=colour, markersize=4, alpha=0.5)
        for axes in (left, right):
            axes.axhline(1 - 1 / EXPERTS, color="black", linewidth=0.8, alpha=0.5)
        left.set(xlabel=f"step of {BATCH} examples, d = {largest}", ylabel="squared error / mean of y²", ylim=(0, 1.1))
        right.set(xlabel="dimension d", xscale="log")
        right.set_xticks(size.dimensions, [str(dimension) for dimension in size.dimensions])
        right.minorticks_off()
        right.set_title("at the end; dots: seeds; line: one expert alone", fontsize=9)
        figure.legend(loc="outside lower center", ncols=3)
        return figure
