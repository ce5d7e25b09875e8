"""Pretrains a small vision seed on the public pool of recipes/vision.yaml, without labels: no registry carries one.

    python benchmarks/pretrain_vision_seed.py --out .cache/vision-seed            about 10 minutes on 2 cores
    python benchmarks/pretrain_vision_seed.py --out DIR --quick                   3 steps, under 45 s, good for nothing

A ViT of 32 × 32 pixels, patches of 8, width 192, 6 layers (2.7 M parameters), trained so that two views of one picture
are told from all other pictures (SimCLR, Chen et al. 2020, arXiv:2002.05709). Each view keeps a random part of the
patches alone: cheaper by as much, and an augmentation of its own (He et al. 2021, arXiv:2111.06377; Li et al. 2022,
arXiv:2212.00794). The embedding is the mean over tokens.

The pictures are those of `vision-pool`, which no owner may hold: CIFAR-10's public part, training images of
Fashion-MNIST (the owner holds official test images) and emoji. So pool and seed overlap with two of three domains in
kind, though in no picture, and with handwritten digits not at all. `--probe` measures the features on the owners'
*validation* splits, never on test. The same random seed and thread count give the same fingerprint.
"""

import argparse
import json
import math
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional
from transformers import ViTConfig, ViTImageProcessorPil, ViTModel
from transformers.utils import logging

from collegium.core.load_recipe import load_recipe
from collegium.core.progress import progress_bar
from collegium.core.recipe import Recipe
from collegium.data.catalogue import CATALOGUE
from collegium.data.examples import load_splits
from collegium.data.images import Picture
from collegium.models.encoder import embed_texts
from collegium.models.seed_model import load_seed_model

RECIPE = Path(__file__).parents[1] / "recipes" / "vision.yaml"
SIZE, PATCH = 32, 8
KEPT = 8  # of 16 patches in each view
BATCH, LEARNING_RATE, WARMUP = 256, 1.5e-3, 30
TEMPERATURE = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--random-seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--probe", action="store_true", help="measure the features on the owners' validation splits")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.manual_seed(options.random_seed)
    pictures = load_pictures(limit=512 if options.quick else None)
    start = time.perf_counter()
    model = standardise(pretrain(pictures, steps=3 if options.quick else options.steps), pictures)
    seconds = time.perf_counter() - start
    write_seed(model, options.out)
    metrics: dict[str, float] = {"pictures": len(pictures)}
    if options.probe:
        metrics |= probe(options.out)
    row = {
        "benchmark": "pretrain_vision_seed",
        "method": "simclr with dropped patches",
        "case": {"steps": 3 if options.quick else options.steps, "quick": options.quick},
        "random_seed": options.random_seed,
        "threads": options.threads,
        "seconds": [seconds],
        "peak_bytes": None,
        "metrics": metrics,
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }
    if options.json:
        options.json.write_text(json.dumps(row) + "\n")
    print(f"{options.out}: fingerprint {load_seed_model(str(options.out)).fingerprint}")
    print(json.dumps(row))


def load_pictures(limit: int | None) -> Tensor:
    """The pool as bytes, in the order of the content hashes; [items, 3, height, width]."""
    found = [item for item in CATALOGUE["vision-pool"].load().texts if isinstance(item, Picture)]
    distinct = {picture.content_hash: picture for picture in found}
    arrays = [
        np.asarray(Image.fromarray(distinct[value].pixels).resize((SIZE, SIZE), Image.Resampling.BILINEAR))
        for value in sorted(distinct)[:limit]
    ]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)


def pretrain(pictures: Tensor, steps: int) -> ViTModel:
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=768,
        image_size=SIZE,
        patch_size=PATCH,
    )
    model = ViTModel(config, add_pooling_layer=False)
    projection = nn.Sequential(nn.Linear(192, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Linear(512, 128))
    optimizer = torch.optim.AdamW(
        [*model.parameters(), *projection.parameters()], lr=LEARNING_RATE, weight_decay=0.05, betas=(0.9, 0.95)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / WARMUP, 0.5 + 0.5 * math.cos(math.pi * step / steps)),
    )
    order = torch.empty(0, dtype=torch.long)
    with progress_bar("pretrain the vision seed", steps) as bar:
        for _ in range(steps):
            if len(order) < min(BATCH, len(pictures)):
                order = torch.randperm(len(pictures))
            rows, order = order[:BATCH], order[BATCH:]
            batch = pictures[rows].float() / 255
            views = torch.cat([augment(batch), augment(batch)])  # [2 · items, 3, height, width]
            loss = contrast(projection(embed(model, (views - 0.5) / 0.5)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.advance(1)
    return model.eval()


def standardise(model: ViTModel, pictures: Tensor) -> ViTModel:
    """Shift and scale the last LayerNorm so that embeddings of the pool have mean 0 and variance 1 in each dimension.

    Contrastive features lie in a narrow cone, where cosines, and with them the
    selection, the head and the overlap check, tell little apart.
    """
    with torch.inference_mode():
        states = [
            model(pixel_values=(chunk.float() / 255 - 0.5) / 0.5).last_hidden_state.mean(dim=1)
            for chunk in pictures.split(512)
        ]
    deviation, mean = torch.std_mean(torch.cat(states), dim=0)
    norm = model.layernorm
    norm.weight.data = norm.weight.data / deviation
    norm.bias.data = (norm.bias.data - mean) / deviation
    return model


def embed(model: ViTModel, pixels: Tensor) -> Tensor:
    """Mean token state of views that keep some patches alone; [items, dim]."""
    tokens = model.embeddings(pixels)  # [items, 1 + patches, dim]
    patches = tokens.shape[1] - 1
    kept = torch.rand(len(tokens), patches).argsort(dim=1)[:, :KEPT] + 1  # [items, kept]
    kept = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.long), kept], dim=1)
    hidden = tokens.gather(1, kept.unsqueeze(-1).expand(-1, -1, tokens.shape[2]))
    for layer in model.layers:
        hidden = layer(hidden)
    return model.layernorm(hidden).mean(dim=1)


def contrast(projected: Tensor) -> Tensor:
    """InfoNCE of both views of each picture against all others in the batch."""
    unit = functional.normalize(projected, dim=1)
    logits = unit @ unit.T / TEMPERATURE
    logits.fill_diagonal_(float("-inf"))
    half = len(unit) // 2
    return functional.cross_entropy(logits, torch.arange(len(unit)).roll(half))


def augment(batch: Tensor) -> Tensor:
    """Another view of each picture: a random crop, flipped or not, its colours changed, removed or inverted.

    Colours are changed a good deal, since they alone would tell most pictures apart.
    """
    count = len(batch)
    scale = (0.25 + 0.75 * torch.rand(count)).sqrt()
    ratio = torch.exp((torch.rand(count) - 0.5) * 0.5)
    width, height = (scale * ratio).clamp(max=1.0), (scale / ratio).clamp(max=1.0)
    flip = torch.where(torch.rand(count) < 0.5, -1.0, 1.0)
    shift = torch.rand(count, 2) * 2 - 1
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0], theta[:, 0, 2] = width * flip, shift[:, 0] * (1 - width)
    theta[:, 1, 1], theta[:, 1, 2] = height, shift[:, 1] * (1 - height)
    grid = functional.affine_grid(theta, list(batch.shape), align_corners=False)
    view = functional.grid_sample(batch, grid, padding_mode="reflection", align_corners=False)
    gain = 1 + (torch.rand(count, 3, 1, 1) - 0.5) * 0.8
    contrast_gain = 0.6 + 0.8 * torch.rand(count, 1, 1, 1)
    mean = view.mean(dim=(1, 2, 3), keepdim=True)
    view = ((view - mean) * contrast_gain + mean) * gain + (torch.rand(count, 1, 1, 1) - 0.5) * 0.4
    grey = view.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    view = torch.where(torch.rand(count, 1, 1, 1) < 0.3, grey, view).clamp(0, 1)
    return torch.where(torch.rand(count, 1, 1, 1) < 0.2, 1 - view, view)


def write_seed(model: ViTModel, folder: Path) -> None:
    model.save_pretrained(folder)
    ViTImageProcessorPil(
        size={"height": SIZE, "width": SIZE}, image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5]
    ).save_pretrained(folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))


def probe(folder: Path) -> dict[str, float]:
    """Validation accuracy of class means and of a linear probe, for each owner of the recipe."""
    seed = load_seed_model(str(folder))
    recipe = load_recipe(RECIPE, Recipe)
    found = {}
    for name, owner in recipe.owners.items():
        splits = load_splits(owner.data or "", owner.columns, owner.limits, recipe.random_seed, name)
        train, validation = embed_texts(seed, splits.train.texts), embed_texts(seed, splits.validation.texts)
        labels, right = np.array(splits.train.labels), np.array(splits.validation.labels)
        names = sorted(set(labels))
        means = np.stack([train[labels == one].mean(axis=0) for one in names])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        found[f"{name}, class means"] = float((np.array(names)[(validation @ means.T).argmax(axis=1)] == right).mean())
        linear = LogisticRegression(C=10.0, max_iter=2000).fit((train - train.mean(0)) / train.std(), labels)
        found[f"{name}, linear"] = float((linear.predict((validation - train.mean(0)) / train.std()) == right).mean())
    return {name: round(value, 4) for name, value in found.items()}


if __name__ == "__main__":
    main()
