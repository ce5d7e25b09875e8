"""The demo itself, real model and texts: killed at ten random moments it ends with the hashes of an undisturbed run."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]
RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"


def command(folder: Path) -> list[str]:
    wordnet = Path(os.environ.get("COLLEGIUM_WORDNET", "")) / "data.noun"
    pool = [] if wordnet.is_file() else ["--set", "pool.data=imdb"]
    return [
        *(sys.executable, "-m", "collegium.cli.main", "run", str(RECIPE), "--quiet"),
        *("--out", str(folder), "--threads", "2", *pool),
    ]


def test_the_demo_survives_ten_kills(tmp_path: Path) -> None:
    subprocess.run(command(tmp_path / "undisturbed"), check=True)
    undisturbed = json.loads((tmp_path / "undisturbed" / "summary.json").read_text())
    needed = sum(figures["seconds"] for figures in undisturbed["stages"].values())
    moments = random.Random(11)
    kills = 0
    for _ in range(10):
        with subprocess.Popen(command(tmp_path / "killed"), start_new_session=True) as child:
            try:
                child.wait(timeout=moments.uniform(0.05, 0.25) * needed)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, 9)
                kills += 1
    subprocess.run(command(tmp_path / "killed"), check=True)
    assert kills >= 8
    assert json.loads((tmp_path / "killed" / "summary.json").read_text())["hashes"] == undisturbed["hashes"]
