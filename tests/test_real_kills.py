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


SMALL = ["pool.limit=800", "selection.size=40", "training.steps=3"] + [
    f"owners.{owner}.limits={{train: 32, validation: 20, test: 30}}" for owner in ("newsroom", "cinema", "developers")
]
START = 4  # seconds that Python and the libraries need before there is anything to disturb


def command(folder: Path, overrides: list[str]) -> list[str]:
    wordnet = Path(os.environ.get("COLLEGIUM_WORDNET", "")) / "data.noun"
    pool = [] if wordnet.is_file() else ["--set", "pool.data=imdb"]
    return [
        *(sys.executable, "-m", "collegium.cli.main", "run", str(RECIPE), "--quiet"),
        *("--out", str(folder), "--threads", "2", *pool),
        *(word for override in overrides for word in ("--set", override)),
    ]


@pytest.mark.parametrize("overrides", [SMALL, []], ids=["few texts", "whole"])
def test_the_demo_survives_ten_kills(overrides: list[str], tmp_path: Path) -> None:
    subprocess.run(command(tmp_path / "undisturbed", overrides), check=True)
    undisturbed = json.loads((tmp_path / "undisturbed" / "summary.json").read_text())
    needed = sum(figures["seconds"] for figures in undisturbed["stages"].values())
    moments = random.Random(11)
    kills = 0
    for _ in range(10):
        with subprocess.Popen(command(tmp_path / "killed", overrides), start_new_session=True) as child:
            try:
                child.wait(timeout=START + moments.uniform(0.02, 0.25) * needed)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, 9)
                kills += 1
    subprocess.run(command(tmp_path / "killed", overrides), check=True)
    assert kills >= 5
    assert json.loads((tmp_path / "killed" / "summary.json").read_text())["hashes"] == undisturbed["hashes"]
