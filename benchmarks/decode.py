"""How many tokens a second a real decoder makes: the seed, and mixtures of three experts routed by token or by context.

    python benchmarks/decode.py --seed-model .cache/smollm2 [--quick] [--json PATH]

The experts are copies of the seed's feed-forward networks, the routers are random: speed depends on neither. One expert
a token, one decision at layer 4 as in recipes/smollm2.yaml. One round makes the same number of tokens with every model
after the same prompt, so that whatever else the machine does meets all of them; the ratio is the median over rounds.
"""

import argparse
import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from collegium.core.router_settings import RouterSettings
from collegium.models.expert_tensors import ffn_tensors
from collegium.models.seed_model import SeedModel, load_seed_model
from collegium.unify.merge import unified_model

DECIDE_LAYER = 4
PROMPT = 48  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed-model", default=".cache/smollm2")
    parser.add_argument("--quick", action="store_true", help="8 tokens, 3 rounds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokens, rounds = (8, 3) if options.quick else (32, options.rounds)
    seconds: dict[str, list[float]] = {}
    models = all_models(load_seed_model(options.seed_model))
    for round_ in range(rounds + 1):
        for name, model in models.items():
            taken = decode(model, tokens)
            if round_:  # the first warms up
                seconds.setdefault(name, []).append(taken)
    rows = []
    print("| model | tokens a second | time over the seed's | over token routing's |\n| --- | ---: | ---: | ---: |")
    for name, own in seconds.items():
        metrics = {
            "tokens_per_second": tokens / statistics.median(own),
            "ratio_to_seed": ratio(own, seconds["seed"]),
            "ratio_to_token": ratio(own, seconds["token"]),
        }
        speed, *ratios = metrics.values()
        print(f"| {name} | {speed:.1f} | " + " | ".join(f"{value:.3f}" for value in ratios) + " |")
        rows.append(
            {
                "benchmark": "decode",
                "method": name,
                "case": {"seed_model": options.seed_model, "prompt": PROMPT, "tokens": tokens, "experts": 3},
                "random_seed": 0,
                "threads": options.threads,
                "seconds": own,
                "peak_bytes": None,
                "metrics": metrics,
                "versions": {package: version(package) for package in ("torch", "transformers")},
            }
        )
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


def all_models(seed: SeedModel) -> dict[str, Any]:
    """The seed, and the mixtures by their context."""
    layers = range(DECIDE_LAYER, seed.num_layers)
    found = {"seed": seed.model}
    for context in ("token", "causal"):
        router = RouterSettings(context=context, decide_layer=DECIDE_LAYER)
        experts = {name: ffn_tensors(seed, layers) for name in ("a", "b", "c")}
        found[context] = unified_model(seed, experts, layers, router)
        for one in found[context].routers.values():
            one.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    return found


def decode(model: Any, tokens: int) -> float:
    """Seconds for so many tokens after the prompt, whose pass is not counted."""
    ids = torch.randint(5, model.config.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        token = model(input_ids=ids, cache=cache, logits_to_keep=1).logits[:, -1:].argmax(dim=-1)
        start = time.perf_counter()
        for _ in range(tokens):
            token = model(input_ids=token, cache=cache).logits[:, -1:].argmax(dim=-1)
    return time.perf_counter() - start


def ratio(own: list[float], base: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(own, base, strict=True))


if __name__ == "__main__":
    main()
