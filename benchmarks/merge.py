"""Merging fine-tunes on disk into one MoE folder: time and peak memory, beside other programs that do the same job.

    python benchmarks/merge.py                                  4 × 0.7 GB and 4 × 1.5 GB (needs 12 GB of disk)
    python benchmarks/merge.py --peer-python PEERS/bin/python   with mergekit-moe and MixtureKit, see below
    python benchmarks/merge.py --quick                          4 × 16 MB, under 45 s
    python benchmarks/merge.py --json rows.jsonl                one row for each method and case

The fine-tunes are random bfloat16 Llama checkpoints that differ in their feed-forward networks; they are generated
into a temporary folder and deleted. Every run is a process of its own; `seconds` are those of the merge without the
imports, medians are over --repeats runs (peers: --peer-repeats). Peak memory is VmHWM, which counts mapped files too;
`above imports` is what it rose by. CPU seconds say more
on a machine that does other work as well. The methods take turns, so that all meet the same state of the machine; a
first round that is not counted warms the page cache.

    collegium         the whole of `collegium merge`: every check of the values, checksums, flushed to disk
    collegium, copy   its byte copy alone: what the others do, who check nothing and flush nothing
    load and save     all state dicts loaded with safetensors, one saved: what one would write by hand
    mergekit-moe      PyPI mergekit, gate_mode random, its default options
    MixtureKit        PyPI mixturekit, traditional, streaming (its default)

The peers need an environment of their own (mergekit pins versions that we do not want):

    python3.11 -m venv PEERS && PEERS/bin/pip install torch==2.13.0 && PEERS/bin/pip install mergekit mixturekit
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

CASES = {
    "4 × 16 MB": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "vocab_size": 4000},
    "4 × 0.7 GB": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24, "vocab_size": 32000},
    "4 × 1.5 GB": {"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 24, "vocab_size": 32000},
}
NAMES = [f"expert-{index}" for index in range(4)]
PEERS = {"mergekit-moe": "mergekit", "MixtureKit": "mixturekit"}
OURS = ("collegium", "collegium, copy", "load and save")


def main() -> None:
    options = _options()
    if options.worker:
        work(options.worker, options.folder, options.threads)
        return
    rows = []
    sizes = list(CASES)[:1] if options.quick else options.cases
    for case in sizes:
        with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
            folder = Path(scratch)
            generate(folder, CASES[case])
            rows += measure(case, folder, options)
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    show(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES)[1:])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer-python", type=Path, help="python of the peers' environment; left out = without peers")
    parser.add_argument("--scratch", type=Path, help="where the temporary folder is made")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def generate(folder: Path, size: dict[str, int]) -> None:
    """A seed and four fine-tunes of it, with a tokenizer as the peers want one."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(**size, num_attention_heads=16, num_key_value_heads=16, tie_word_embeddings=True)
    config.dtype, config.architectures = torch.bfloat16, ["LlamaForCausalLM"]
    words = Tokenizer(WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, "word": 3}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    shapes.pop("lm_head.weight")
    generator = torch.Generator().manual_seed(0)

    def random(names: list[str]) -> dict[str, torch.Tensor]:
        return {
            name: torch.empty(shapes[name], dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)
            for name in names
        }

    shared = random([name for name in shapes if ".mlp." not in name])
    for name in ("seed", *NAMES):
        target = folder / name
        target.mkdir()
        config.save_pretrained(target)
        tokenizer.save_pretrained(target)
        own = random([name for name in shapes if ".mlp." in name])
        save_file({**shared, **own}, target / "model.safetensors", {"format": "pt"})


def measure(case: str, folder: Path, options: argparse.Namespace) -> list[dict]:
    """Run the methods in turns, each time in a new process; one row for each method."""
    runs: dict[str, list[dict]] = {method: [] for method in (*OURS, *(PEERS if options.peer_python else ()))}
    for turn in range(1 if options.quick else 1 + max(options.repeats, options.peer_repeats)):
        for method, done in runs.items():
            if turn <= (options.peer_repeats if method in PEERS else options.repeats):
                result = run(method, case, folder, options)
                if turn or options.quick:
                    done.append(result)
    return [
        {
            "benchmark": "merge",
            "method": method,
            "case": {"size": case, **CASES[case], "experts": len(NAMES), "quick": options.quick},
            "random_seed": 0,
            "threads": options.threads,
            "seconds": [one["seconds"] for one in done],
            "peak_bytes": max(one["peak_bytes"] for one in done),
            "metrics": {
                "above_imports_bytes": max(one["peak_bytes"] - one["before_bytes"] for one in done),
                "cpu_seconds": statistics.median(one["cpu_seconds"] for one in done),
                "process_seconds": statistics.median(one["process_seconds"] for one in done),
                "written_bytes": done[-1]["written_bytes"],
            },
            "versions": done[-1]["versions"],
        }
        for method, done in runs.items()
    ]


def run(method: str, case: str, folder: Path, options: argparse.Namespace) -> dict:
    """One run of a method in a process of its own."""
    python = options.peer_python if method in PEERS else sys.executable
    command = [python, __file__, "--worker", method, "--folder", folder, "--threads", str(options.threads)]
    threads = {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
    environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    os.sync()  # what the run before left to be written would slow this one down
    start = time.perf_counter()
    result = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if result.returncode:
        sys.exit(f"{method} failed on {case}:\n{result.stderr[-2000:]}")
    written = sum(file.stat().st_size for file in (folder / "out").rglob("*") if file.is_file())
    shutil.rmtree(folder / "out")
    return {**json.loads(result.stdout.splitlines()[-1]), "process_seconds": seconds, "written_bytes": written}


def work(method: str, folder: Path, threads: int) -> None:
    """In the process of one run: import, merge, print the figures as JSON."""
    import torch

    torch.set_num_threads(threads)
    job = JOBS[method](folder)
    before, start, cpu = _memory("VmRSS"), time.perf_counter(), time.process_time()
    job()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    used = ["torch", "transformers", "safetensors", *([PEERS[method]] if method in PEERS else [])]
    figures = {"seconds": seconds, "cpu_seconds": cpu, "before_bytes": before, "peak_bytes": _memory("VmHWM")}
    print("\n" + json.dumps({**figures, "versions": {name: version(name) for name in used}}))


def _memory(field: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024


def _collegium(folder: Path):
    from collegium.unify.merge_checkpoints import ROUTER, merge_checkpoints

    experts = {name: folder / name for name in NAMES}
    router = ROUTER.model_copy(update={"warmup_tokens": 0})  # the others keep no seed beside the experts
    return lambda: merge_checkpoints(folder / "seed", experts, folder / "out", router)


def _collegium_copy(folder: Path):
    from collegium.moe.architectures import architecture_of
    from collegium.unify.byte_merge import write_outputs
    from collegium.unify.checkpoint import read_checkpoint
    from collegium.unify.example_router import random_routers
    from collegium.unify.merge_checkpoints import ROUTER
    from collegium.unify.moe_layout import ffn_of, moe_outputs, num_layers

    def job() -> None:
        row = architecture_of("llama")
        seed = read_checkpoint(folder / "seed")
        experts = {name: read_checkpoint(folder / name) for name in NAMES}
        routers = random_routers(seed.config["hidden_size"], len(NAMES), range(num_layers(seed, row)), ROUTER, 0)
        outputs = moe_outputs(seed, experts, row, ffn_of(seed, row), routers, "BF16", "seed", keeps_seed_ffn=False)
        (folder / "out").mkdir()
        write_outputs(folder / "out", outputs)

    return job


def _load_and_save(folder: Path):
    from safetensors.torch import load_file, save_file

    def job() -> None:
        seed = load_file(folder / "seed" / "model.safetensors")
        merged = {name: tensor for name, tensor in seed.items() if ".mlp." not in name}
        for index, name in enumerate(NAMES):
            for key, tensor in load_file(folder / name / "model.safetensors").items():
                if ".mlp." in key:
                    merged[key.replace(".mlp.", f".mlp.experts.{index}.")] = tensor
        (folder / "out").mkdir()
        save_file(merged, folder / "out" / "model.safetensors", {"format": "pt"})

    return job


def _mergekit(folder: Path):
    from mergekit.merge import MergeOptions
    from mergekit.moe.config import MoEMergeConfig
    from mergekit.scripts.moe import build

    experts = [{"source_model": str(folder / name)} for name in NAMES]
    config = {"base_model": str(folder / "seed"), "gate_mode": "random", "dtype": "bfloat16", "experts": experts}
    config["experts_per_token"] = 1
    return lambda: build(MoEMergeConfig.model_validate(config), str(folder / "out"), MergeOptions(), device="cpu")


def _mixturekit(folder: Path):
    import torch
    from MixtureKit import build_moe

    experts = [{"expert_name": name, "model_id": str(folder / name)} for name in NAMES]
    config = {"moe_method": "traditional", "model_type": "merged", "num_experts_per_tok": 1, "experts": experts}
    config["alpha"] = 0.0
    return lambda: build_moe(config, torch_dtype=torch.bfloat16, output_dir=str(folder / "out"))


JOBS = {
    "collegium": _collegium,
    "collegium, copy": _collegium_copy,
    "load and save": _load_and_save,
    "mergekit-moe": _mergekit,
    "MixtureKit": _mixturekit,
}


def show(rows: list[dict]) -> None:
    columns = (
        "seconds: median (least to most)",
        "runs",
        "CPU seconds",
        "peak memory, MB",
        "above imports, MB",
        "GB out",
    )
    print("| case | method | " + " | ".join(columns) + " |")
    print("| --- | --- |" + " ---: |" * len(columns))
    for row in rows:
        seconds = row["seconds"]
        print(
            f"| {row['case']['size']} | {row['method']} | {statistics.median(seconds):.2f} "
            f"({min(seconds):.2f} to {max(seconds):.2f}) | {len(seconds)} | {row['metrics']['cpu_seconds']:.2f} "
            f"| {row['peak_bytes'] / 1e6:.0f} "
            f"| {row['metrics']['above_imports_bytes'] / 1e6:.0f} | {row['metrics']['written_bytes'] / 1e9:.2f} |"
        )


if __name__ == "__main__":
    main()
