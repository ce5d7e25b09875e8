"""A realistic summary of a run, as `flow` writes it."""

from typing import Any

import pytest

OWNERS = {
    "newsroom": (
        "bbc",
        "a news article about {label}",
        ["business", "entertainment", "politics", "sport", "tech"],
    ),
    "cinema": ("rotten-tomatoes", "a {label} film review", ["negative", "positive"]),
    "distribution": (
        "debian",
        "the description of a {label} package",
        ["admin", "games", "math", "sound", "web"],
    ),
}
UNION = {
    "seed": (0.803, 0.487, 0.453),
    "expert:newsroom": (0.957, 0.413, 0.407),
    "expert:cinema": (0.747, 0.783, 0.423),
    "expert:distribution": (0.78, 0.453, 0.843),
    "soup": (0.923, 0.673, 0.717),
    "unified": (0.953, 0.773, 0.837),
    "oracle": (0.957, 0.783, 0.843),
}


def _row(values: tuple[float, ...]) -> dict[str, float]:
    return {**dict(zip(OWNERS, values, strict=True)), "mean": sum(values) / len(values)}


def _entries() -> list[dict[str, Any]]:
    unit = "one private example (replace-one)"
    return [
        {"what": "expert weights", "from_data": "private examples and proxies", "unit": unit,
         "sensitivity": "not bounded", "mechanism": "none", "epsilon": "infinity",
         "reveals": "Weights trained without noise can tell whether a text was among the training examples."},
        {"what": "routing vector", "from_data": "private examples and proxies", "unit": unit,
         "sensitivity": "2B/m = 0.034", "mechanism": "none", "epsilon": "infinity",
         "reveals": "The mean of the private examples lies on a known line through this vector."},
        {"what": "proxies (500 indices)", "from_data": "private examples", "unit": unit,
         "sensitivity": "not bounded", "mechanism": "none", "epsilon": "infinity",
         "reveals": "Which public texts are like the private ones."},
        {"what": "label names", "from_data": "the owner’s choice", "unit": "the whole list",
         "sensitivity": "–", "mechanism": "none", "epsilon": "infinity", "reveals": "The names themselves."},
    ]  # fmt: skip


@pytest.fixture
def summary() -> dict[str, Any]:
    stages = {"pool": (12.1, 812345678), "charter": (0.3, 812345678)}
    stages |= {f"contribute:{name}": (31.4, 1412345678) for name in OWNERS}
    stages |= {"unify": (74.9, 1612345678), "evaluate": (21.0, 1312345678)}
    shares = {
        "newsroom": [0.981, 0.007, 0.012],
        "cinema": [0.021, 0.964, 0.015],
        "distribution": [0.008, 0.004, 0.988],
    }
    return {
        "project": "demo",
        "random_seed": 0,
        "task": "label-matching",
        "created_with": {
            "collegium": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0", "threads": 2,
            "python": "3.11.7",
        },
        "owners": {
            name: {"data": data, "prompt": prompt, "labels": labels, "labels_published": name != "cinema"}
            for name, (data, prompt, labels) in OWNERS.items()
        },
        "pool": {"data": "wordnet", "items": 19876, "duplicates_removed": 124},
        "accuracy": {
            method: {"told": _row(tuple(min(1, v + 0.02) for v in values)), "union": _row(values)}
            for method, values in UNION.items()
        },
        "examples": dict.fromkeys(OWNERS, 300),
        "routing": {"sequence": 0.978, "experts": list(OWNERS), "by_layer": {"1": shares}},
        "coverage": {
            "compared": 2000,
            "spread": 0.063,
            "owners": {
                name: {"proxies": 500, "shared": 1 + i, "spread": 0.041 + i / 10, "nearest": 0.312}
                for i, name in enumerate(OWNERS)
            },
        },
        "pool_map": {
            "pool": [[i / 20 - 1, (i * 7 % 20) / 20 - 0.5] for i in range(40)],
            "owners": {name: [[0.1 * i, 0.2], [0.3, -0.1 * i]] for i, name in enumerate(OWNERS)},
            "shared": [[0.5, 0.5]],
        },
        "stages": {name: {"seconds": s, "peak_bytes": b} for name, (s, b) in stages.items()},
        "released_bytes": {"newsroom": 29876543, "cinema": 29874311, "distribution": 29879120},
        "ledger": {name: _entries() for name in OWNERS},
        "unification": {
            "router_init": "lda",
            "temperature": 31.2,
            "held_out_proxies": 148,
            "joint_tuning": {"kept": False, "accuracy_before": 0.81, "accuracy_after": 0.80},
            "fallback": {"enabled": False, "pool_agreement_without": 0.8, "pool_agreement_with": 0.99},
            "flags": ["cinema: 42 % of its held-out proxies answered, less than the seed model (55 %)"],
        },
        "settings": {
            "project": "demo", "seed_model": "minilm", "task": "label-matching",
            "pool": {"data": "wordnet", "limit": 20000},
            "owners": {name: {"data": data, "prompt": prompt} for name, (data, prompt, _) in OWNERS.items()},
            "selection": {"method": "dpp", "size": 500},
            "router": {"init": "lda", "decide": "once", "context": "sequence"},
            "random_seed": 0,
        },
        "hashes": {name: f"{i:x}" * 64 for i, name in enumerate(["seed_model", "pool", "charter", "unified"])}
        | {f"contribution:{name}": "c0ffee42" * 8 for name in OWNERS},
    }  # fmt: skip
