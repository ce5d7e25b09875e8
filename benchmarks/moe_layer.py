"""The MoE layer beside the dense networks that it runs, transformers' own implementations, and a plain loop.

    python benchmarks/moe_layer.py            every size (about 20 minutes on one thread)
    python benchmarks/moe_layer.py --quick    two sizes, and low-rank experts, under 45 s
    python benchmarks/moe_layer.py --json rows.jsonl

Gated feed-forward networks of the same weights, a linear router with renormalised softmax weights; every method gives
the same output (checked). One round runs all methods once; the figure is the median over rounds of a method's CPU time
divided by that of k dense networks over all tokens in the same round, so that a busy machine disturbs all alike.

    dense        k feed-forward networks over all tokens: what an ideal layer costs
    in pieces    all experts, each over its share of the tokens as they stand, without router, gathering or summing:
                 products of fewer rows are slower, and no layer of separate experts can be faster than this
    collegium    our layer: router, sort by expert, one chain of linear maps for each expert
    eager        transformers' Mixtral block, its loop over experts
    grouped_mm   the same block on torch's grouped matrix product
    batched_mm   the same block with the weights gathered for each token (small sizes alone: it copies them)
    plain loop   as published MoE code does it: every expert picks its tokens by a mask, the first runs on all tokens to
                 learn the shape

Low-rank experts, all of one base (`collegium.moe.low_rank`), are measured beside the same experts as full matrices:

    dense        as above
    full         our layer with experts W + B A
    low rank     our layer with the base and the factors
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from collegium.moe.context import RoutingState, routing_state
from collegium.moe.experts import FeedForward
from collegium.moe.layer import MoEFeedForward
from collegium.moe.low_rank import LowRankExpert
from collegium.moe.router import Router

INNER = 1536
SIZES = [
    (dim, experts, k, tokens)
    for dim in (384, 576)
    for experts, k in ((4, 1), (4, 2), (8, 1), (8, 2))
    for tokens in (256, 1024, 4096)
]
QUICK = [(384, 4, 1, 512), (384, 8, 2, 512)]
RANK = 16
LOW_RANK = [(dim, 8, k, tokens) for dim in (384, 576) for k in (1, 2, 4) for tokens in (256, 1024)]
QUICK_LOW_RANK = [(384, 8, k, 256) for k in (1, 2, 4)]
METHODS = {
    None: ["in pieces", "collegium", "eager", "grouped_mm", "batched_mm", "plain loop"],
    RANK: ["full", "low rank"],
}
MOST_GATHERED = 256  # tokens · k from which `batched_mm` would copy gigabytes of weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rounds = 5 if options.quick else options.rounds
    sizes = [(*size, None) for size in (QUICK if options.quick else SIZES)]
    sizes += [(*size, RANK) for size in (QUICK_LOW_RANK if options.quick else LOW_RANK)]
    rows = []
    for dim, experts, k, tokens, rank in sizes:
        for backward in (False, True):
            found = measure(dim, experts, k, tokens, rank, backward, rounds)
            rows += [
                {
                    "benchmark": "moe_layer",
                    "method": method,
                    "case": {
                        "hidden": dim,
                        "inner": INNER,
                        "experts": experts,
                        "experts_per_token": k,
                        "rank": rank,
                        "tokens": tokens,
                        "pass": "forward and backward" if backward else "forward",
                        "quick": options.quick,
                    },
                    "random_seed": 0,
                    "threads": options.threads,
                    "seconds": seconds,
                    "peak_bytes": None,
                    "metrics": {"ratio_to_dense": ratio(seconds, found["dense"])},
                    "versions": {name: version(name) for name in ("torch", "transformers")},
                }
                for method, seconds in found.items()
            ]
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    show(rows)


def measure(
    dim: int, experts: int, k: int, tokens: int, rank: int | None, backward: bool, rounds: int
) -> dict[str, list[float]]:
    """Method → CPU seconds of every round."""
    torch.manual_seed(0)
    methods = methods_of(dim, experts, k, tokens) if rank is None else low_rank_methods(dim, experts, k, rank)
    hidden = torch.randn(1, tokens, dim, requires_grad=True)
    check_equal({name: run for name, (run, _) in methods.items() if name not in ("dense", "in pieces")}, hidden)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds + 1):
        for name, (run, module) in methods.items():
            module.zero_grad()
            hidden.grad = None
            with torch.set_grad_enabled(backward):
                start = time.process_time()
                output = run(hidden)
                if backward:
                    output.sum().backward()
                seconds[name].append(time.process_time() - start)
    return {name: values[1:] for name, values in seconds.items()}  # the first round warms up


Methods = dict[str, tuple[Callable[[Tensor], Tensor], nn.Module]]


def methods_of(dim: int, experts: int, k: int, tokens: int) -> Methods:
    networks = [FeedForward(dim, INNER, "silu", gated=True, bias=False) for _ in range(experts)]
    router = Router(dim, experts, k, "renormalised")
    router.weight.data.normal_()
    ours = MoEFeedForward(0, 0, 1, networks, "token", router, share_decision=False)
    theirs = mixtral_block(ours, dim, k)

    def block(implementation: str) -> Callable[[Tensor], Tensor]:
        def run(hidden: Tensor) -> Tensor:
            theirs.experts.config._experts_implementation = implementation
            return theirs(hidden)

        return run

    found: Methods = {
        "dense": (dense(networks[:k]), ours),
        "in pieces": (in_pieces(networks, k), ours),
        "collegium": (in_a_model(ours), ours),
        "eager": (block("eager"), theirs),
        "grouped_mm": (block("grouped_mm"), theirs),
    }
    if tokens * k <= MOST_GATHERED:
        found["batched_mm"] = (block("batched_mm"), theirs)
    found["plain loop"] = (lambda hidden: plain_loop(hidden, router, networks), ours)
    return found


def low_rank_methods(dim: int, experts: int, k: int, rank: int) -> Methods:
    base = FeedForward(dim, INNER, "silu", gated=True, bias=False)
    shapes = {name: tuple(base.get_submodule(name).weight.shape) for name in (*base.entries, "down_proj")}
    low_rank = [LowRankExpert(shapes, rank) for _ in range(experts)]
    full = [copy.deepcopy(base) for _ in range(experts)]
    with torch.no_grad():
        for expert, network in zip(low_rank, full, strict=True):
            for name in shapes:
                factors = [expert.get_parameter(f"{name}_{factor}") for factor in "BA"]
                factors[0].normal_(std=0.1)
                network.get_submodule(name).weight.add_(factors[0] @ factors[1])
    router = Router(dim, experts, k, "renormalised")
    router.weight.data.normal_()
    layers = {
        "full": MoEFeedForward(0, 0, 1, full, "token", router, share_decision=False),
        "low rank": MoEFeedForward(0, 0, 1, low_rank, "token", router, share_decision=False, base=base),
    }
    found: Methods = {name: (in_a_model(layer), layer) for name, layer in layers.items()}
    return {"dense": (dense(full[:k]), layers["full"]), **found}


def in_a_model(layer: MoEFeedForward) -> Callable[[Tensor], Tensor]:
    def run(hidden: Tensor) -> Tensor:
        with routing_state(RoutingState(mask=None)):
            return layer(hidden)

    return run


def dense(networks: list[FeedForward]) -> Callable[[Tensor], Tensor]:
    return lambda hidden: torch.stack([network(hidden) for network in networks]).sum(dim=0)


def in_pieces(networks: list[FeedForward], k: int) -> Callable[[Tensor], Tensor]:
    def run(hidden: Tensor) -> Tensor:
        parts = hidden[0].chunk(len(networks) // k) * k
        return torch.cat([network(part) for network, part in zip(networks, parts, strict=True)])

    return run


def mixtral_block(ours: MoEFeedForward, dim: int, k: int) -> MixtralSparseMoeBlock:
    """transformers' block with our weights."""
    config = MixtralConfig(
        hidden_size=dim, intermediate_size=INNER, num_local_experts=len(ours.experts), num_experts_per_tok=k
    )
    block = MixtralSparseMoeBlock(config)
    with torch.no_grad():
        block.gate.weight.copy_(ours.router.weight)
        for index, network in enumerate(ours.experts):
            block.experts.gate_up_proj[index].copy_(torch.cat([network.gate_proj.weight, network.up_proj.weight]))
            block.experts.down_proj[index].copy_(network.down_proj.weight)
    return block


def plain_loop(hidden: Tensor, router: Router, networks: list[FeedForward]) -> Tensor:
    rows = hidden.reshape(-1, hidden.shape[-1])
    routing = router(hidden, None)
    chosen, weights = routing.experts.reshape(len(rows), -1), routing.weights.reshape(len(rows), -1)
    output = torch.zeros_like(networks[0](rows))
    for index, network in enumerate(networks):
        token, place = torch.where(chosen == index)
        output[token] += network(rows[token]) * weights[token, place, None]
    return output.reshape(hidden.shape)


def check_equal(runs: dict[str, Callable[[Tensor], Tensor]], hidden: Tensor) -> None:
    with torch.no_grad():
        expected = next(iter(runs.values()))(hidden)
        for name, run in runs.items():
            torch.testing.assert_close(run(hidden), expected, rtol=1e-3, atol=1e-4, msg=f"{name} gives another output")


def ratio(seconds: list[float], dense: list[float]) -> float:
    return statistics.median(own / base for own, base in zip(seconds, dense, strict=True))


def show(rows: list[dict]) -> None:
    for rank, methods in METHODS.items():
        print(f"\n{'Full experts' if rank is None else f'Experts of rank {rank}'}\n")
        print("| hidden, experts, k, tokens, pass | dense ms | " + " | ".join(methods) + " |")
        print("| --- |" + " ---: |" * (len(methods) + 1))
        cases: dict[str, dict[str, dict]] = {}
        for row in (row for row in rows if row["case"]["rank"] == rank):
            case = row["case"]
            name = ", ".join(str(case[key]) for key in ("hidden", "experts", "experts_per_token", "tokens", "pass"))
            cases.setdefault(name, {})[row["method"]] = row
        for name, found in cases.items():
            ratios = [f"{found[one]['metrics']['ratio_to_dense']:.2f}" if one in found else "–" for one in methods]
            print(
                f"| {name} | {1000 * statistics.median(found['dense']['seconds']):.1f} | " + " | ".join(ratios) + " |"
            )


if __name__ == "__main__":
    main()
