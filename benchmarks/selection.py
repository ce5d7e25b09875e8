"""Choosing diverse and relevant items from a pool: time, memory and quality, beside other programs.

    python benchmarks/selection.py                                 all sizes without peers (about 3 minutes)
    python benchmarks/selection.py --quick                         smaller pools, under 45 s
    python benchmarks/selection.py --make-peers PEERS              install the peers into an environment of their own
    python benchmarks/selection.py --peer-python PEERS/bin/python  beside the peers
    python benchmarks/selection.py --real                          WordNet's glosses alone, relevance to BBC News
    python benchmarks/selection.py --growth                        how the cost grows with the pool, dimension and size
    python benchmarks/selection.py --json rows.jsonl               one row for each method and case

Synthetic pools are clustered unit vectors with a smooth relevance. Every run is a process of its own with one thread;
`seconds` are CPU seconds, so that other work on the machine disturbs them little; medians of --repeats runs (3 where a
run takes over 20 s). Memory is what a selection needs beside the features. log det is
recomputed in float64 from the picks, for every method by the same function.

    collegium              select_dpp; `on disk` reads the pool from a memory-mapped file
    dense                  Chen, Zhang, Zhou 2018 on the dense kernel in float64: the reference
    top 2,000              the reference on the 2,000 most relevant items only, as the published MetaMoE code does
    pyversity, submodlib, linear_operator, scipy QR, apricot     see PEERS; apricot has no log det: facility location
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

# n, d, m, ridge
CASES = [
    (2_000, 768, 500, 1e-3),
    (20_000, 384, 300, 0.0),
    (20_000, 384, 500, 1e-3),
    (200_000, 384, 300, 0.0),
    (200_000, 384, 500, 1e-3),
    (1_000_000, 384, 1_000, 1e-3),
]
QUICK = [(2_000, 768, 500, 1e-3), (20_000, 384, 300, 0.0)]
GROWTH = {
    "pool": [(n, 384, 300, 1e-3) for n in (25_000, 50_000, 100_000, 200_000)],
    "dimension": [(50_000, d, 90, 1e-3) for d in (96, 192, 384, 768)],
    "size": [(50_000, 384, m, 1e-3) for m in (50, 100, 200, 400, 800)],
}
MOST_DENSE = 20_000  # items: beyond, an n × n matrix does not fit
PEERS = ["pyversity", "submodlib-py", "linear_operator", "scipy", "apricot-select"]


def main() -> None:
    options = _options()
    if options.worker:
        work(options)
        return
    if options.make_peers:
        make_peers(options.make_peers)
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ceiling = run("gemm ceiling", folder, 0, 0.0, options)["seconds"][0]  # GFLOP/s
        print(f"float32 matrix products: {ceiling:.0f} GFLOP/s on one thread")
        cases = QUICK if options.quick else options.cases or ([] if options.real else CASES)
        if options.growth:
            cases = [case for group in GROWTH.values() for case in group]
        for num_items, dim, size, ridge in cases:
            generate(folder, num_items, dim)
            rows += measure(folder, f"synthetic {num_items:,} × {dim}", num_items, dim, size, ridge, ceiling, options)
        if options.real:
            num_items, dim = real(folder, options.real)
            rows += measure(folder, "WordNet, MiniLM", num_items, dim, 500, 1e-3, ceiling, options)
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    show(rows)
    if options.growth:
        show_growth(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-python", type=Path, help="python of the peers' environment")
    parser.add_argument("--make-peers", type=Path, metavar="FOLDER")
    parser.add_argument("--real", type=int, nargs="?", const=117_659, metavar="GLOSSES", help="at most so many")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--cases", type=_case, nargs="+", metavar="N,D,M,RIDGE")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ridge", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def _case(text: str) -> tuple[int, int, int, float]:
    num_items, dim, size, ridge = text.split(",")
    return int(num_items), int(dim), int(size), float(ridge)


def make_peers(folder: Path) -> None:
    """One environment for all peers; what cannot be installed is named and left out."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "pip", "install", "--quiet"]
    subprocess.run([*pip, "torch==2.13.0"], check=True)
    for peer in PEERS:
        if subprocess.run([*pip, peer], check=False).returncode:
            print(f"{peer} cannot be installed here")


def generate(folder: Path, num_items: int, dim: int) -> None:
    """Clustered unit vectors and a smooth log relevance."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(20, num_items // 200), dim), np.float32)
    features = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (num_items, dim))
    direction = rng.standard_normal(dim, np.float32)
    scores = np.empty(num_items)
    for start in range(0, num_items, 8192):
        rows = slice(start, min(start + 8192, num_items))
        count = rows.stop - start
        chunk = centres[rng.integers(len(centres), size=count)] + 0.7 * rng.standard_normal((count, dim), np.float32)
        features[rows] = chunk / np.linalg.norm(chunk, axis=1, keepdims=True)
        scores[rows] = features[rows] @ direction
    features.flush()
    np.save(folder / "log_relevance.npy", -np.logaddexp(0.0, 1.0 - 1.5 * scores / scores.std()))


def real(folder: Path, limit: int) -> tuple[int, int]:
    """The glosses of WordNet as a pool, and their relevance to 300 articles of BBC News."""
    from collegium.core.recipe import Columns, Limits, PoolSettings, RelevanceSettings
    from collegium.data.examples import load_splits
    from collegium.models.encoder import embed_texts
    from collegium.models.seed_model import load_seed_model
    from collegium.selection.pool import build_pool
    from collegium.selection.relevance import log_relevance

    seed = load_seed_model("minilm", max_length=64)
    pool = build_pool(Path("runs") / f"wordnet-{limit}", PoolSettings(data="wordnet", limit=limit), seed, 0)
    private = load_splits("bbc", Columns(), Limits(train=300), 0, "newsroom").train
    np.save(folder / "features.npy", pool.embeddings)
    relevance = log_relevance(pool.embeddings, embed_texts(seed, private.texts), RelevanceSettings(), 0)
    np.save(folder / "log_relevance.npy", relevance)
    return pool.embeddings.shape


def measure(
    folder: Path, name: str, num_items: int, dim: int, size: int, ridge: float, ceiling: float, options
) -> list[dict]:
    """One row for each method that can do this case."""
    print(f"{name}, m = {size}, ridge {ridge:g} …", file=sys.stderr)
    methods = ["collegium", "collegium, on disk"]
    if not options.growth:
        methods.append("top 2,000")
        methods += ["dense"] if num_items <= (2_000 if options.quick else MOST_DENSE) else []
        if options.peer_python:
            methods += [peer for peer, (_, most) in PEER_METHODS.items() if num_items <= most]
    rows = []
    for method in methods:
        result = run(method, folder, size, ridge, options)
        if "error" in result:
            print(f"{method}: {result['error']}", file=sys.stderr)
            continue
        seconds = statistics.median(result["seconds"])
        rows.append(
            {
                "benchmark": "selection",
                "method": method,
                "case": {"pool": name, "n": num_items, "d": dim, "m": size, "ridge": ridge, "quick": options.quick},
                "random_seed": 0,
                "threads": 1,
                "seconds": result["seconds"],
                "peak_bytes": result["peak_bytes"],
                "metrics": {
                    "logdet": log_det(folder, result["picks"], ridge),
                    "distinct": len(set(result["picks"])),
                    "gemm_fraction": 2e-9 * num_items * dim * size / seconds / ceiling,
                },
                "versions": result["versions"],
            }
        )
    return rows


def run(method: str, folder: Path, size: int, ridge: float, options: argparse.Namespace) -> dict:
    """Run one method in a process of its own."""
    python = str(options.peer_python) if method in PEER_METHODS else sys.executable
    command = [python, __file__, "--worker", method, "--folder", str(folder), "--size", str(size)]
    command += ["--ridge", str(ridge), "--repeats", str(options.repeats)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=900, env={"PATH": "/usr/bin:/bin", **threads}, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": "stopped after 15 minutes"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def log_det(folder: Path, picks: list[int], ridge: float) -> float:
    """log det of the kernel of the picks, in float64; −inf where an item stands twice without a ridge."""
    features = np.load(folder / "features.npy", mmap_mode="r")[picks].astype(np.float64)
    log_relevance = np.load(folder / "log_relevance.npy")[picks]
    sign, value = np.linalg.slogdet(features @ features.T + ridge * np.eye(len(picks)))
    return float(value + 2 * log_relevance.sum()) if sign > 0 else float("-inf")


def work(options: argparse.Namespace) -> None:
    """In the worker: time one method, print a line of JSON."""
    if options.worker == "gemm ceiling":
        rows, directions = (np.ones((count, 384), np.float32) for count in (1024, 512))
        times = [_seconds(lambda: [rows @ directions.T for _ in range(100)])[0] for _ in range(7)]
        result = {"seconds": [100 * 2e-9 * 1024 * 384 * 512 / min(times)]}
    else:
        result = _timed(options)
    names = ["collegium", "numpy", "torch", *PEERS]
    print(json.dumps({**result, "versions": {name: _version(name) for name in names if _version(name)}}))


def _timed(options: argparse.Namespace) -> dict:
    method = OWN_METHODS.get(options.worker) or PEER_METHODS[options.worker][0]
    log_relevance = np.load(options.folder / "log_relevance.npy")
    mapped = np.load(options.folder / "features.npy", mmap_mode="r")
    if options.worker != "collegium, on disk":
        mapped = np.array(mapped)
    small = slice(0, 200)
    method(np.array(mapped[small]), log_relevance[small], 5, options.ridge)  # imports and compilers
    seconds, picks = [], []
    with _PeakMemory() as memory:
        while len(seconds) < (options.repeats if sum(seconds) < 60 else 3):
            duration, picks = _seconds(lambda: method(mapped, log_relevance, options.size, options.ridge))
            seconds.append(duration)
    return {"seconds": seconds, "picks": [int(item) for item in picks], "peak_bytes": memory.peak - memory.before}


class _PeakMemory:
    """Looks 50 times a second how much anonymous memory is resident: files that are mapped do not count."""

    def __enter__(self):
        self.before = self.peak = _anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _watch(self):
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, _anonymous_bytes())


def _seconds(job):
    start = time.process_time()
    result = job()
    return time.process_time() - start, result


def collegium_dpp(features, log_relevance, size, ridge):
    from collegium.selection.dpp import select_dpp

    return select_dpp(features, log_relevance, size, ridge).indices


def dense(features, log_relevance, size, ridge):
    """Chen, Zhang, Zhou 2018 (https://arxiv.org/abs/1709.05135), algorithm 1, float64; stops at the rank."""
    relevance = np.exp(log_relevance)
    scaled = np.asarray(features, np.float64) * relevance[:, None]
    kernel = scaled @ scaled.T
    kernel[np.diag_indices(len(kernel))] += ridge * relevance**2
    residual = kernel.diagonal().copy()
    least = 1e-10 * residual
    rows = np.zeros((size, len(kernel)))
    picks = []
    while len(picks) < size:
        item = int(np.argmax(residual))
        if residual[item] <= least[item]:
            break
        count = len(picks)
        rows[count] = (kernel[item] - rows[:count, item] @ rows[:count]) / np.sqrt(residual[item])
        residual -= rows[count] ** 2
        residual[item] = -np.inf
        picks.append(item)
    return picks


def top_2000(features, log_relevance, size, ridge):
    most_relevant = np.argsort(-log_relevance)[:2000]
    return most_relevant[dense(features[most_relevant], log_relevance[most_relevant], size, ridge)]


def pyversity(features, log_relevance, size, ridge):
    """Its weights exp(β z-score) are g up to a factor for β = the deviation of log g; it knows no ridge."""
    from pyversity import Strategy, diversify

    scale = 2 * float(log_relevance.std())
    found = diversify(features, log_relevance, size, strategy=Strategy.DPP, diversity=0.5, scale=scale)
    return found.indices


def submodlib(features, log_relevance, size, ridge):
    from submodlib.functions.logDeterminant import LogDeterminantFunction

    kernel = _kernel(features, log_relevance, ridge)
    function = LogDeterminantFunction(len(kernel), mode="dense", lambdaVal=0, sijs=kernel)
    found = function.maximize(budget=size, optimizer="LazyGreedy", show_progress=False)
    return [item for item, _ in found]


def linear_operator(features, log_relevance, size, ridge):
    import torch
    from linear_operator.operators import DiagLinearOperator, RootLinearOperator

    torch.set_num_threads(1)
    relevance = torch.from_numpy(np.exp(log_relevance))
    kernel = RootLinearOperator(torch.from_numpy(features).double() * relevance[:, None])
    if ridge:
        kernel = kernel + DiagLinearOperator(ridge * relevance**2)
    return kernel.pivoted_cholesky(size, error_tol=1e-30, return_pivots=True)[1][:size].tolist()


def scipy_qr(features, log_relevance, size, ridge):
    """Column pivoting is the greedy choice without a ridge; it cannot stop after `size` columns."""
    from scipy.linalg import qr

    scaled = np.asarray(features, np.float64) * np.exp(log_relevance)[:, None]
    return qr(scaled.T, mode="r", pivoting=True, overwrite_a=True, check_finite=False)[1][: min(size, scaled.shape[1])]


def apricot(features, log_relevance, size, ridge):
    from apricot import FacilityLocationSelection

    kernel = _kernel(features, log_relevance, ridge)
    chosen = FacilityLocationSelection(size, metric="precomputed", optimizer="lazy")
    return chosen.fit(np.maximum(kernel, 0.0)).ranking


def _kernel(features, log_relevance, ridge):
    relevance = np.exp(log_relevance)
    scaled = np.asarray(features, np.float64) * relevance[:, None]
    return scaled @ scaled.T + np.diag(ridge * relevance**2)


OWN_METHODS = {
    "collegium": collegium_dpp,
    "collegium, on disk": collegium_dpp,
    "dense": dense,
    "top 2,000": top_2000,
}
PEER_METHODS = {  # and the largest pool that a method is asked to take
    "pyversity": (pyversity, 200_000),
    "submodlib": (submodlib, 2_000),
    "linear_operator": (linear_operator, 2_000),
    "scipy QR": (scipy_qr, 20_000),
    "apricot": (apricot, 2_000),
}


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def show(rows: list[dict]) -> None:
    print("\n| pool, m, ridge | method | CPU seconds | ÷ collegium | memory, MB | log det | ceiling |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        case, metrics = row["case"], row["metrics"]
        ours = next(r for r in rows if r["case"] == case and r["method"] == "collegium")
        seconds, own = (statistics.median(r["seconds"]) for r in (row, ours))
        same = "" if metrics["distinct"] == case["m"] else f" ({metrics['distinct']} distinct items)"
        cells = [f"{case['pool']}, {case['m']}, {case['ridge']:g}", row["method"], f"{seconds:.3f}"]
        cells += [f"{seconds / own:.1f}", f"{row['peak_bytes'] / 1e6:.0f}", f"{metrics['logdet']:.3f}{same}"]
        print(f"| {' | '.join(cells)} | {100 * metrics['gemm_fraction']:.0f} % |")


def show_growth(rows: list[dict]) -> None:
    """Exponent of the cost in each variable: 1 = linear."""
    index = {"pool": "n", "dimension": "d", "size": "m"}
    for name, cases in GROWTH.items():
        points = [
            (case, statistics.median(row["seconds"]))
            for case in cases
            for row in rows
            if row["method"] == "collegium"
            and (row["case"]["n"], row["case"]["d"], row["case"]["m"], row["case"]["ridge"]) == case
        ]
        position = ("n", "d", "m").index(index[name])
        slope = np.polyfit([np.log(case[position]) for case, _ in points], [np.log(s) for _, s in points], 1)[0]
        times = ", ".join(f"{case[position]:,}: {seconds:.3f} s" for case, seconds in points)
        print(f"growth with the {name} ({index[name]}): exponent {slope:.2f}; {times}")


if __name__ == "__main__":
    main()
