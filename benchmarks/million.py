"""Peak memory of `collegium pool`, `charter` and `select` on a large pool, beside its files.

    python benchmarks/million.py                   1,000,000 items × 384, 1,000 picks (about 15 minutes, 3 GB of disk)
    python benchmarks/million.py --items 100000    smaller; --quick: 5,000, under 45 s
    python benchmarks/million.py --json rows.jsonl

The commands run as their users run them, each in a process of its own. Memory is anonymous resident memory, read 20
times a second: mapped files do not count. The texts are made up and the seed is a random BERT of one narrow layer,
since neither changes what the stages hold in memory; the embeddings have MiniLM's 384 dimensions.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = [
    f"{first}{second}" for first in "bdfghklmnprst" for second in ("a", "e", "i", "o", "u", "ai", "ou", "an", "en")
]


def main() -> None:
    options = _options()
    items, picks = (5_000, 100) if options.quick else (options.items, options.picks)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        make_seed(folder / "seed")
        make_texts(folder, items)
        make_recipes(folder, picks)
        pool = ["--pool", "pool", "--seed-model", "seed"]
        commands = {
            "pool": ["pool", "coordinator.yaml", "--out", "pool"],
            "charter": ["charter", "coordinator.yaml", "--pool", "pool", "--out", "charter"],
            "select": [
                "select",
                "charter",
                "owner.yaml",
                *pool,
                "--allow-overlap",
            ],  # a random seed finds all texts alike
        }
        found = {name: run(command, folder, options.threads) for name, command in commands.items()}
        pool_bytes = sum(file.stat().st_size for file in (folder / "pool").iterdir())
    rows = [
        {
            "benchmark": "million",
            "method": f"collegium {name}",
            "case": {"n": items, "d": 384, "m": picks, "quick": options.quick},
            "random_seed": 0,
            "threads": options.threads,
            "seconds": [seconds],
            "peak_bytes": peak,
            "metrics": {"pool_bytes": pool_bytes},
            "versions": {name: version(name) for name in ("collegium", "torch", "numpy", "pyarrow")},
        }
        for name, (seconds, peak) in found.items()
    ]
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{items:,} items × 384, {picks:,} picks; the pool's files: {pool_bytes / 1e6:,.0f} MB\n")
    print("| command | seconds | peak memory beside the files, MB |\n| --- | ---: | ---: |")
    for row in rows:
        print(f"| `{row['method']}` | {row['seconds'][0]:.0f} | {row['peak_bytes'] / 1e6:,.0f} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--picks", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scratch", type=Path, help="where the temporary folder is made")
    return parser.parse_args()


def make_seed(folder: Path) -> None:
    torch.manual_seed(0)
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    size = {"hidden_size": 384, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(vocabulary), **size)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_texts(folder: Path, items: int) -> None:
    """Distinct public texts of a few words; two owners, one of whom likes some words."""
    draw = random.Random(0)
    with (folder / "public.csv").open("w") as file:
        file.write("text\n")
        file.writelines(f"{' '.join(draw.choices(WORDS, k=8))}\n" for _ in range(items))
    for name, liked in (("one", WORDS[:20]), ("two", WORDS[20:40])):
        rows = [f"{' '.join(draw.choices(liked, k=9))},{draw.choice(['left', 'right'])}\n" for _ in range(300)]
        (folder / f"{name}.csv").write_text("text,label\n" + "".join(rows))


def make_recipes(folder: Path, picks: int) -> None:
    owners = {name: {"labels": ["left", "right"]} for name in ("one", "two")}
    coordinator = {
        "seed_model": "seed",
        "pool": {"data": "public.csv"},
        "owners": owners,
        "selection": {"size": picks},
        "router": {"decide_layer": 0},
    }
    (folder / "coordinator.yaml").write_text(yaml.safe_dump(coordinator))
    (folder / "owner.yaml").write_text(yaml.safe_dump({"name": "one", "data": "one.csv"}))


def run(command: list[str], folder: Path, threads: int) -> tuple[float, int]:
    """Seconds and peak anonymous memory of one command.

    Raises:
        CalledProcessError: it failed; what it printed stands on the terminal.
    """
    start, peak = time.perf_counter(), 0
    words = [sys.executable, "-m", "collegium.cli.main", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, env=environment) as process:
        while process.poll() is None:
            peak = max(peak, _anonymous_bytes(process.pid))
            time.sleep(0.05)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return time.perf_counter() - start, peak


def _anonymous_bytes(pid: int) -> int:
    """0 where the process has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


if __name__ == "__main__":
    main()
