"""The demo's recipe over several random seeds: mean ± std of every method, and times and memory by stage.

    python benchmarks/one_shot.py                          three seeds, test data (about 12 minutes on 2 cores)
    python benchmarks/one_shot.py --quick                  one seed, a few texts, under 45 s
    python benchmarks/one_shot.py --set router.init=lda    any key of the recipe
    python benchmarks/one_shot.py --recipe recipes/paper.yaml --name paper     another recipe of the same owners
    python benchmarks/one_shot.py --json rows.jsonl        one row for each method and seed

The experts of all methods are the same; every seed draws its own splits, pool sample and training order. The runs are
resumable: a finished seed is not run again.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from transformers.utils import logging

from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import Recipe
from collegium.flow.simulate import simulate

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"
QUICK = ["pool.limit=800", "selection.size=40", "training.steps=3"] + [
    f"owners.{owner}.limits={{train: 32, validation: 20, test: 30}}" for owner in ("newsroom", "cinema", "developers")
]


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    seeds = options.seeds[:1] if options.quick else options.seeds
    overrides = (QUICK if options.quick else []) + options.overrides
    summaries = []
    for seed in seeds:
        recipe = load_recipe(options.recipe, Recipe, [*overrides, f"random_seed={seed}"])
        name = "one-shot-quick" if options.quick else "one-shot"
        path = simulate(recipe, options.out / f"{name}-{options.name}-{seed}")
        summaries.append(json.loads(path.read_text()))
    if options.json:
        rows = [row for summary in summaries for row in _rows(summary, options)]
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _print(summaries)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--name", default="default", help="of the variant, in the folders' names")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


def _rows(summary: dict, options: argparse.Namespace) -> list[dict]:
    stages = summary["stages"].values()
    common = {
        "benchmark": "one_shot",
        "case": {"variant": options.name, "quick": options.quick, "overrides": options.overrides},
        "random_seed": summary["random_seed"],
        "threads": options.threads,
        "seconds": [sum(stage["seconds"] for stage in stages)],
        "peak_bytes": max(stage["peak_bytes"] for stage in stages),
        "versions": summary["created_with"],
    }
    rows = []
    for method, accuracy in summary["accuracy"].items():
        metrics = {f"{setting}.{name}": value for setting in accuracy for name, value in accuracy[setting].items()}
        if method == "unified":
            metrics["routing.sequence"] = summary["routing"]["sequence"]
        rows.append({"method": method, **common, "metrics": metrics})
    return rows


def _print(summaries: list[dict]) -> None:
    domains = [*summaries[0]["examples"], "mean"]
    seeds = ", ".join(str(summary["random_seed"]) for summary in summaries)
    for setting in ("union", "told"):
        print(f"\n| accuracy %, {setting}, seeds {seeds} | " + " | ".join(domains) + " |")
        print("| --- |" + " ---: |" * len(domains))
        for method in summaries[0]["accuracy"]:
            cells = [
                _mean_std([100 * summary["accuracy"][method][setting][name] for summary in summaries])
                for name in domains
            ]
            print(f"| {method} | " + " | ".join(cells) + " |")
    routed = [100 * summary["routing"]["sequence"] for summary in summaries]
    kept = sum(summary["unification"]["joint_tuning"]["kept"] for summary in summaries)
    print(
        f"\nrouted to their own domain's expert: {_mean_std(routed)} %; joint tuning kept in {kept} of {len(summaries)}"
    )
    print("\n| stage | seconds | peak memory, MB |\n| --- | ---: | ---: |")
    for stage in summaries[0]["stages"]:
        seconds = _mean_std([summary["stages"][stage]["seconds"] for summary in summaries])
        peak = _mean_std([summary["stages"][stage]["peak_bytes"] / 1e6 for summary in summaries], digits=0)
        print(f"| {stage} | {seconds} | {peak} |")


def _mean_std(values: list[float], digits: int = 1) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
