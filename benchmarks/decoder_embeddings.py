"""How alike a decoder's embeddings of unrelated texts are, and whether the nearest text is of the same domain.

    python benchmarks/decoder_embeddings.py --seed-model .cache/smollm2 [--quick] [--json PATH]

Mean hidden states of texts of four domains (BBC, Rotten Tomatoes, docstrings, WordNet), at three layers, with the first
token and without it, as they are and with the mean of WordNet taken off. Selection, relevance and the search for near
copies work on such embeddings.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from collegium.data.catalogue import CATALOGUE
from collegium.models.seed_model import load_seed_model

DOMAINS = ("bbc", "rotten-tomatoes", "docstrings", "wordnet")
PUBLIC = DOMAINS.index("wordnet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed-model", default=".cache/smollm2")
    parser.add_argument("--texts", type=int, default=40, help="of each domain")
    parser.add_argument("--quick", action="store_true", help="5 texts of each domain")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts, domains = draw(5 if options.quick else options.texts)
    seed = load_seed_model(options.seed_model, 48)
    rows = []
    print("| states | mean cosine | highest | nearest is of the domain |\n| --- | ---: | ---: | ---: |")
    for name, embeddings in hidden_means(seed, texts).items():
        for centred in (False, True):
            shifted = embeddings - embeddings[domains == PUBLIC].mean(axis=0) if centred else embeddings
            metrics = alike(shifted, domains)
            case = name + (", centred" if centred else "")
            cells = " | ".join(f"{value:.3f}" for value in metrics.values())
            print(f"| {case} | {cells} |")
            rows.append({"benchmark": "decoder_embeddings", "method": case, "random_seed": 0, "metrics": metrics})
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


def draw(count: int) -> tuple[list[str], np.ndarray]:
    """Texts of every domain, and the number of each one's domain."""
    random = np.random.default_rng(0)
    texts = []
    for name in DOMAINS:
        found = CATALOGUE[name].load().texts
        texts += [str(found[row]) for row in random.permutation(len(found))[:count]]
    return texts, np.repeat(np.arange(len(DOMAINS)), count)


def hidden_means(seed, texts: list[str]) -> dict[str, np.ndarray]:
    """Kind of mean → [texts, dim]."""
    layers = {"last": seed.num_layers, "two thirds": 2 * seed.num_layers // 3, "a third": seed.num_layers // 3}
    parts: dict[str, list[np.ndarray]] = {}
    for start in range(0, len(texts), 16):
        inputs = seed.tokenise(texts[start : start + 16])
        with torch.inference_mode():
            states = seed.model.base_model(**inputs, output_hidden_states=True).hidden_states
        for first in (True, False):
            mask = inputs["attention_mask"].double()
            if not first:
                mask[:, 0] = 0.0  # where decoders park attention: its state is far longer than all others
            for name, layer in layers.items():
                means = (states[layer].double() * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
                parts.setdefault(name + ("" if first else ", no first token"), []).append(means.numpy())
    return {name: np.concatenate(found) for name, found in parts.items()}


def alike(embeddings: np.ndarray, domains: np.ndarray) -> dict[str, float]:
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    cosines = unit @ unit.T
    others = ~np.eye(len(unit), dtype=bool)
    nearest = np.where(others, cosines, -np.inf).argmax(axis=1)
    return {
        "mean": float(cosines[others].mean()),
        "highest": float(cosines[others].max()),
        "same_domain": float((domains[nearest] == domains).mean()),
    }


if __name__ == "__main__":
    main()
