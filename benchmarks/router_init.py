"""How well the closed forms of the router find an owner's expert: the study behind the default (docs/lab-notes.md).

    python benchmarks/router_init.py            two pools, three seeds, three layers (about 7 minutes on 2 cores)
    python benchmarks/router_init.py --quick    one pool and seed, few texts, under 45 s
    python benchmarks/router_init.py --recipe text --pools wordnet --layers 1 2 3 4 5       other owners and layers

No expert is trained: with `decide: once` the routing depends on the seed's pass alone. Routing vectors are means over
300 private texts and the training proxies, as an owner would release them; the share routed right is measured on the
owners' validation texts, macro average over owners.
"""

import argparse
import json
import statistics
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
from collegium.models.ffn_inputs import ffn_input_means
from collegium.models.seed_model import SeedModel, load_seed_model
from collegium.owner.routing_vectors import routing_vectors
from collegium.selection.pool import build_pool, is_held_out
from collegium.selection.select import select_proxies
from collegium.unify.router_init import initial_router, pool_statistics

RECIPES = Path(__file__).parents[1] / "recipes"
FORMS = [("raw", 1.0), ("normalised", 1.0)] + [
    (form, shrinkage) for form in ("lda", "whitened") for shrinkage in (0.1, 1.0, 3.0, 10.0, 100.0)
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recipe", default="demo", help="in recipes/: whose owners")
    parser.add_argument("--pools", nargs="+", default=["wordnet", "imdb"])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    recipe = load_recipe(RECIPES / f"{options.recipe}.yaml", Recipe)
    seed = load_seed_model(recipe.seed_model, recipe.max_length)
    rows = []
    for pool_name in ["imdb"] if options.quick else options.pools:
        for random_seed in options.seeds[:1] if options.quick else options.seeds:
            start = time.perf_counter()
            found = measure(seed, recipe, options.layers, pool_name, random_seed, options.quick)
            rows += [
                {
                    "benchmark": "router_init",
                    "method": f"{form} {shrinkage:g}" if form in ("lda", "whitened") else form,
                    "case": {"pool": pool_name, "layer": layer, "quick": options.quick},
                    "random_seed": random_seed,
                    "threads": options.threads,
                    "seconds": [time.perf_counter() - start],
                    "peak_bytes": None,
                    "metrics": {"routed_right": share},
                    "versions": {name: version(name) for name in ("torch", "transformers")},
                }
                for (form, shrinkage, layer), share in found.items()
            ]
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    show(rows)


def measure(
    seed: SeedModel, recipe: Recipe, layers: list[int], pool_name: str, random_seed: int, quick: bool
) -> dict[tuple[str, float, int], float]:
    """(form, shrinkage, layer) → share of validation texts routed to their own owner."""
    train, validation, size, items = (60, 40, 60, 600) if quick else (300, 150, 300, 4000)
    with tempfile.TemporaryDirectory() as folder:
        pool = build_pool(Path(folder) / "pool", PoolSettings(data=pool_name, limit=items), seed, random_seed)
        statistics_by_layer = pool_statistics(seed, pool, layers, held_out_one_in=10)
        vectors, texts = [], []
        for name, owner in recipe.owners.items():
            limits = Limits(train=train, validation=validation, test=1)
            splits = load_splits(owner.data or "", owner.columns, limits, random_seed, name)
            embeddings = embed_texts(seed, splits.train.texts)
            settings = recipe.selection.model_copy(update={"size": size})
            own = stream_seed(random_seed, "owner", name)
            chosen = select_proxies(pool.embeddings, pool.hashes, embeddings, settings, own).indices
            proxies = pool.texts([row for row in chosen if not is_held_out(pool.hashes[row], 10)])
            vectors.append(routing_vectors(seed, seed.architecture, splits.train.texts + proxies, layers))
            means = np.zeros((len(splits.validation), len(layers), seed.dim))
            for rows, batch in ffn_input_means(seed, seed.architecture, splits.validation.texts, layers):
                means[rows] = batch
            texts.append(means)
    found = {}
    for form, shrinkage in FORMS:
        for index, layer in enumerate(layers):
            mine = np.stack([vector[index] for vector in vectors])
            router = initial_router(form, mine, statistics_by_layer[index], shrinkage, fallback_bias=None)
            shares = [
                float((router.logits(means[:, index]).argmax(axis=1) == owner).mean())
                for owner, means in enumerate(texts)
            ]
            found[form, shrinkage, layer] = statistics.mean(shares)
    return found


def show(rows: list[dict]) -> None:
    cases = list(dict.fromkeys((row["case"]["pool"], row["case"]["layer"]) for row in rows))
    print("| router | " + " | ".join(f"{pool}, layer {layer}" for pool, layer in cases) + " |")
    print("| --- |" + " ---: |" * len(cases))
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = []
        for pool, layer in cases:
            shares = [
                100 * row["metrics"]["routed_right"]
                for row in rows
                if (row["method"], row["case"]["pool"], row["case"]["layer"]) == (method, pool, layer)
            ]
            spread = f" ± {statistics.stdev(shares):.1f}" if len(shares) > 1 else ""
            cells.append(f"{statistics.mean(shares):.1f}{spread}")
        print(f"| {method} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
