"""What the context of a router costs over routing by the token alone.

    python benchmarks/context.py            about 8 minutes on one thread
    python benchmarks/context.py --quick    shorter texts, fewer rounds, under 45 s
    python benchmarks/context.py --json rows.jsonl

A BERT of MiniLM's size (6 layers, 384) reads a batch of texts; a Llama (8 layers, 512, 31 M parameters) reads a prompt
and then makes one token after the other. Weights are random, experts equal, four of them, two a token, a router in
every layer (`decide: once` has one and costs less). λ is 0, so that all contexts decide alike and only the work for the
context differs. One round runs all contexts once; the figure is the median over
rounds of a context's time divided by that of `token` in the same round.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, DynamicCache, LlamaConfig

from collegium.moe.architectures import CONTEXTS
from collegium.moe.modeling import UNIFIED_CLASSES, unified_config

ENCODER = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
DECODER = LlamaConfig(
    vocab_size=8000,
    hidden_size=512,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    intermediate_size=1408,
    tie_word_embeddings=True,
)
STEPS = 16  # tokens made in one measurement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokens, rounds = (96, 5) if options.quick else (512, options.rounds)
    found = {
        "encoder forward": measure(encoder_runs(4, tokens // 2), rounds),
        "prefill": measure(prefill_runs(tokens), rounds),
        f"{STEPS} decode steps": measure(decode_runs(tokens), rounds),
    }
    rows = [
        {
            "benchmark": "context",
            "method": context,
            "case": {"pass": name, "tokens": tokens, "experts": 4, "experts_per_token": 2, "quick": options.quick},
            "random_seed": 0,
            "threads": options.threads,
            "seconds": seconds,
            "peak_bytes": None,
            "metrics": {"ratio_to_token": ratio(seconds, contexts["token"])},
            "versions": {package: version(package) for package in ("torch", "transformers")},
        }
        for name, contexts in found.items()
        for context, seconds in contexts.items()
    ]
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print("| pass | token, ms | context | ratio to token |\n| --- | ---: | --- | ---: |")
    for row in rows:
        base = statistics.median(found[row["case"]["pass"]]["token"])
        if row["method"] != "token":
            ratio_ = row["metrics"]["ratio_to_token"]
            print(f"| {row['case']['pass']} | {1000 * base:.1f} | {row['method']} | {ratio_:.3f} |")


def measure(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Context → seconds of every round; the first round warms up and is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for _ in range(rounds + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
    return {name: values[1:] for name, values in seconds.items()}


def encoder_runs(items: int, tokens: int) -> dict[str, Callable[[], None]]:
    ids = torch.randint(5, ENCODER.vocab_size, (items, tokens), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, tokens * 3 // 4 :] = 0
    return {
        name: lambda model=model: model(input_ids=ids, attention_mask=mask)
        for name, model in models(ENCODER, CONTEXTS["encoder"]).items()
    }


def prefill_runs(tokens: int) -> dict[str, Callable[[], None]]:
    ids = torch.randint(5, DECODER.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    return {
        name: lambda model=model: model(input_ids=ids, use_cache=True, logits_to_keep=1)
        for name, model in models(DECODER, CONTEXTS["decoder"]).items()
    }


def decode_runs(tokens: int) -> dict[str, Callable[[], None]]:
    ids = torch.randint(5, DECODER.vocab_size, (1, tokens + STEPS), generator=torch.Generator().manual_seed(0))

    def run(model: Any, cache: DynamicCache) -> None:
        for step in range(STEPS):
            model(input_ids=ids[:, tokens + step : tokens + step + 1], cache=cache)
        cache.crop(-STEPS)

    found = {}
    for name, model in models(DECODER, CONTEXTS["decoder"]).items():
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            model(input_ids=ids[:, :tokens], cache=cache)
        found[name] = lambda model=model, cache=cache: run(model, cache)
    return found


def models(seed: Any, contexts: tuple[str, ...]) -> dict[str, Any]:
    """Context → the same model with that context."""
    found = {}
    for context in contexts:
        torch.manual_seed(0)
        config = unified_config(
            seed, expert_names=list("abcd"), decide="every-layer", context=context, experts_per_token=2
        )
        found[context] = UNIFIED_CLASSES[seed.model_type][1](config).eval()
        for router in found[context].routers.values():
            router.weight.data.normal_()
    return found


def ratio(seconds: list[float], base: list[float]) -> float:
    return statistics.median(own / token for own, token in zip(seconds, base, strict=True))


if __name__ == "__main__":
    main()
