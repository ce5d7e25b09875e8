"""A map of the public pool in two dimensions with every owner's proxies, and how these cover the pool.

From public embeddings and released hashes alone. Computed once, beside the summary, so that a report needs no pool.
The seed's embeddings go through PCA (50 dimensions) and t-SNE (van der Maaten and Hinton 2008,
https://jmlr.org/papers/v9/vandermaaten08a.html), which keeps neighbours together; distances between far groups mean
nothing. 500 iterations, half of scikit-learn's default, and one thread, since with more the sums, and so the map,
depend on their number. 2,000 points cost about 8 s of CPU, 3,500 about 14 s (one core of a small machine).
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float64
from threadpoolctl import threadpool_limits

from collegium.core.artifacts import Artifact, finished, read_artifact, writing
from collegium.owner.contribution import PROXIES
from collegium.reports.reading import MAP
from collegium.selection.pool import Pool

SAMPLE = 2000  # items of the pool, those with the lowest content hashes
SHOWN = 500  # proxies of an owner on the map, those with the lowest content hashes; the figures count all
_SETTINGS = {"sample": SAMPLE, "shown": SHOWN, "dimensions": 50, "perplexity": 30, "iterations": 500}
_DIGITS = 3


def map_pool(path: Path, pool: Pool, contributions: Mapping[str, Path]) -> Artifact:
    """Write `map.json` at `path`; at once if it is there already.

    It holds points `[x, y]` within -1 and 1, rounded to 3 digits: `pool` (a sample), `owners` (the proxies of each
    that nobody else chose) and `shared` (proxies of several owners); and `coverage`, see there.

    Args:
        contributions: folders by owner, already validated against this pool.
    """
    inputs = {"pool": pool.artifact.sha256}
    inputs |= {f"contribution:{name}": read_artifact(one, verify=False).sha256 for name, one in contributions.items()}
    found = finished(path, "pool-map", inputs, _SETTINGS)
    if found is not None:
        return found
    proxies = {
        name: pool.rows_of(json.loads((contributions[name] / PROXIES).read_bytes())) for name in sorted(contributions)
    }
    sample = range(min(SAMPLE, len(pool)))  # the pool stands in the order of its content hashes
    chosen_by = Counter(row for rows in proxies.values() for row in rows)
    shown = {name: sorted(rows)[:SHOWN] for name, rows in proxies.items()}
    mapped = {row for one in shown.values() for row in one}
    rows = sorted(mapped.union(sample))
    with threadpool_limits(limits=1):
        places = dict(zip(rows, project(pool.embeddings[rows]).tolist(), strict=True))
        found = {
            "pool": [places[row] for row in sample],
            "owners": {name: [places[row] for row in one if chosen_by[row] == 1] for name, one in shown.items()},
            "shared": [places[row] for row in sorted(mapped) if chosen_by[row] > 1],
            "coverage": coverage(pool, proxies),
        }
    with writing(path, "pool-map", inputs, _SETTINGS) as folder:
        (folder / MAP).write_text(json.dumps(found), encoding="utf-8")
    return read_artifact(path, "pool-map")


def project(embeddings: Float[np.ndarray, "points dim"]) -> Float64[np.ndarray, "points 2"]:
    """Two dimensions of two or more points, the same ones each time; centred, the larger side from -1 to 1."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    points = len(embeddings)
    dimensions = min(_SETTINGS["dimensions"], *embeddings.shape)
    if not np.ptp(embeddings, axis=0).any():  # all the same: there is no variance to divide by
        return np.zeros((points, 2))
    reduced = PCA(dimensions, random_state=0).fit_transform(embeddings.astype(np.float64))
    perplexity = min(_SETTINGS["perplexity"], (points - 1) / 3)  # must be below the number of points
    tsne = TSNE(perplexity=perplexity, max_iter=_SETTINGS["iterations"], init="pca", random_state=0)
    flat = tsne.fit_transform(reduced).astype(np.float64)
    low, high = flat.min(axis=0), flat.max(axis=0)
    return np.round((flat - (low + high) / 2) / (high - low).max() * 2, _DIGITS) + 0.0  # no -0.0


def coverage(pool: Pool, proxies: Mapping[str, list[int]]) -> dict[str, Any]:
    """How an owner's proxies lie in the pool, by cosine of the seed's embeddings.

    Args:
        proxies: distinct rows of the pool by owner, one or more.

    Returns:
        `compared`: items of the pool that stand for it; `spread`: mean cosine of two of them; and for each of `owners`
        the number of `proxies`, how many are `shared` with another owner, their `spread` (mean cosine of two; None for
        one proxy) and `nearest`, the mean cosine of an item of the pool to the nearest proxy (1 for a proxy itself).
    """
    chosen_by = Counter(row for rows in proxies.values() for row in rows)
    sample = np.asarray(pool.embeddings[:SAMPLE], np.float64)
    owners = {}
    for name, rows in proxies.items():
        own = np.asarray(pool.embeddings[rows], np.float64)
        owners[name] = {
            "proxies": len(rows),
            "shared": sum(chosen_by[row] > 1 for row in rows),
            "spread": _mean_cosine(own),
            "nearest": round(float((sample @ own.T).max(axis=1).mean()), _DIGITS),
        }
    return {"compared": len(sample), "spread": _mean_cosine(sample), "owners": owners}


def _mean_cosine(rows: Float64[np.ndarray, "rows dim"]) -> float | None:
    """Of two different rows of unit norm: |sum|² less the pairs of a row with itself."""
    if len(rows) < 2:
        return None
    pairs = float(np.square(rows.sum(axis=0)).sum() - np.square(rows).sum())
    return round(pairs / (len(rows) * (len(rows) - 1)), _DIGITS)
