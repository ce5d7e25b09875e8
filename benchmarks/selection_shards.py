"""What selecting in shards costs: log det of two-round greedy against the exact greedy, in nats an item.

    python benchmarks/selection_shards.py            WordNet's glosses, three owners, 2 to 32 shards (minutes, to embed)
    python benchmarks/selection_shards.py --quick    600 IMDb reviews, one owner, under a minute
    python benchmarks/selection_shards.py --pool POOL    a pool that `collegium pool` built with the demo's seed model

The relevance is that of the demo's owners, as each would compute it; "nobody" finds all items equally relevant, the
hardest case, since then every shard holds items that matter. Shards run one after the other: `seconds` are those of
all shards and the merge, `longest_shard` is what remains where each has its own machine.
"""

import argparse
import json
import resource
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

from collegium.core.load_recipe import load_recipe
from collegium.core.random_streams import stream_seed
from collegium.core.recipe import Limits, PoolSettings, Recipe
from collegium.data.examples import load_splits
from collegium.models.encoder import embed_texts
from collegium.models.seed_model import SeedModel, load_seed_model
from collegium.selection.dpp import Selection, select_dpp
from collegium.selection.pool import Pool, build_pool, read_pool
from collegium.selection.relevance import log_relevance
from collegium.selection.shards import merge_selections, select_shard

NOBODY = "nobody"
RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pool", type=Path)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    recipe = load_recipe(RECIPE, Recipe)
    seed = load_seed_model(recipe.seed_model, recipe.max_length)
    with tempfile.TemporaryDirectory() as folder:
        settings = PoolSettings(data="imdb", limit=600) if options.quick else PoolSettings(data="wordnet", limit=20_000)
        pool = read_pool(options.pool, seed) if options.pool else build_pool(Path(folder) / "pool", settings, seed, 0)
        rows = []
        for random_seed in options.seeds[:1] if options.quick else options.seeds:
            for owner in [*list(recipe.owners)[: 1 if options.quick else None], NOBODY]:
                size = 20 if options.quick else options.size
                found = measure(seed, recipe, pool, owner, size, random_seed, [2, 8] if options.quick else [2, 8, 32])
                rows += [row | {"threads": options.threads} for row in found]
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    show(rows)


def measure(
    seed: SeedModel, recipe: Recipe, pool: Pool, owner: str, size: int, random_seed: int, numbers: list[int]
) -> list[dict]:
    """One row for the exact greedy and one for each number of shards."""
    settings, own = recipe.selection, stream_seed(random_seed, "owner", owner)
    if owner == NOBODY:
        relevance = np.zeros(len(pool))
    else:
        source = recipe.owners[owner]
        limits = Limits(train=60 if size < 100 else 300, validation=1, test=1)
        private = load_splits(source.data or "", source.columns, limits, random_seed, owner).train.texts
        relevance = log_relevance(pool.embeddings, embed_texts(seed, private), settings.relevance, own)
    hashes = pool.hashes
    start = time.perf_counter()
    exact = select_dpp(pool.embeddings, relevance, size, settings.ridge, hashes)
    rows = [_row(pool, owner, size, random_seed, 1, exact, exact, [time.perf_counter() - start])]
    for number in numbers:
        seconds, answers = [], []
        for shard in range(number):
            start = time.perf_counter()
            answers.append(select_shard(pool.embeddings, relevance, size, settings.ridge, hashes, shard, number))
            seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        merged = merge_selections(answers)
        rows.append(
            _row(pool, owner, size, random_seed, number, merged, exact, [*seconds, time.perf_counter() - start])
        )
    return rows


def _row(
    pool: Pool,
    owner: str,
    size: int,
    random_seed: int,
    shards: int,
    found: Selection,
    exact: Selection,
    seconds: list[float],
) -> dict:
    shared = len(np.intersect1d(found.indices, exact.indices)) / len(exact.indices)
    return {
        "benchmark": "selection_shards",
        "method": "exact" if shards == 1 else f"{shards} shards",
        "case": {"pool": pool.artifact.settings["data"], "items": len(pool), "owner": owner, "size": size},
        "random_seed": random_seed,
        "seconds": [sum(seconds)],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "metrics": {
            "log_det": found.log_det,
            "loss_nats_per_item": (exact.log_det - found.log_det) / len(exact.indices),
            "same_picks": shared,
            "longest_shard": max(seconds[:shards]),
        },
        "versions": {name: version(name) for name in ("numpy", "torch", "transformers")},
    }


def show(rows: list[dict]) -> None:
    print(
        "| relevance to | selection | loss, nats an item: mean | largest | picks as exact | seconds | longest shard |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    cases = dict.fromkeys((row["case"]["owner"] == NOBODY, row["method"]) for row in rows)
    for is_nobody, method in sorted(cases, key=lambda case: case[0]):
        mine = [row for row in rows if (row["case"]["owner"] == NOBODY, row["method"]) == (is_nobody, method)]
        losses = [row["metrics"]["loss_nats_per_item"] for row in mine]
        same = np.mean([row["metrics"]["same_picks"] for row in mine])
        seconds = np.mean([row["seconds"][0] for row in mine])
        longest = np.mean([row["metrics"]["longest_shard"] for row in mine])
        name = NOBODY if is_nobody else "owners"
        loss = f"{np.mean(losses):.5f} | {max(losses):.5f}"
        print(f"| {name} | {method} | {loss} | {same:.1%} | {seconds:.2f} | {longest:.2f} |")


if __name__ == "__main__":
    main()
