"""The commands of docs/two-machines.md, each where the page says, with nothing in reach but what was sent there."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from collegium.cli.main import app
from collegium.cli.options import store_beside
from collegium.core.recipe import OwnerRecipe
from collegium.unify.unified_folder import read_unified
from tiny import DOMAINS, write_rows

PAGE = Path(__file__).parents[2] / "docs" / "two-machines.md"
OWNERS = {"newsroom": "farm", "cinema": "port"}  # the page's owners, and the tiny domains that stand in for them


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def machines(tmp_path: Path, seed_folder: Path, data_folder: Path) -> dict[str, Path]:
    """One folder for each machine, with the recipes of the page on tiny data."""
    folders = {name: tmp_path / name for name in ("coordinator", *OWNERS)}
    for folder in folders.values():
        folder.mkdir()
    recipe = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0])
    recipe |= {"seed_model": str(seed_folder), "max_length": 16, "selection": {"size": 15}}
    recipe["pool"] = {"data": str(data_folder / "pool.jsonl")}
    recipe["training"] = {"epochs": 1, "warmup_steps": 0}
    for owner, domain in OWNERS.items():
        recipe["owners"][owner] |= {"labels": list(DOMAINS[domain])}
        write_rows(folders[owner] / "texts.jsonl", domain, 30)
        own = {"name": owner, "data": "texts.jsonl", "privacy": {"overlap_similarity": 1.0}}
        (folders[owner] / f"{owner}.yaml").write_text(yaml.safe_dump(own))
    (folders["coordinator"] / "coordinator.yaml").write_text(yaml.safe_dump(recipe))
    (folders["newsroom"] / "headlines.txt").write_text("the old cow\nnew wheat here\n")
    return folders


def send(name: str, sender: Path, receivers: list[Path]) -> None:
    for receiver in receivers:
        shutil.copytree(sender / name, receiver / name)


def test_the_page_of_two_machines_runs_as_written(
    machines: dict[str, Path], seed_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {}
    everybody = [machines[owner] for owner in OWNERS]
    for command in commands():
        arguments = shlex.split(command.replace("minilm", str(seed_folder)))[1:]
        here = next((machines[owner] for owner in OWNERS if f"{owner}.yaml" in command), machines["coordinator"])
        if command == "collegium inspect contribution-newsroom" or command.startswith("collegium predict"):
            here = machines["newsroom"]
        monkeypatch.chdir(here)
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{command}\n{result.output}"
        outputs[command] = result.output
        if command.startswith("collegium charter"):
            send("charter", here, everybody)
            send("pool", here, everybody)
        if command.startswith("collegium contribute") and "--dry-run" not in command:
            send(arguments[-1], here, [machines["coordinator"]])
            assert {path.name for path in here.iterdir()} - {"headlines.txt"} == {
                "charter", "pool", "texts.jsonl", f"{here.name}.yaml", f"contribution-{here.name}", ".collegium",
            }  # fmt: skip
        if "--dry-run" in command:
            assert not (here / "contribution-newsroom").exists()
            assert not (here / ".collegium").exists()
        if command.startswith("collegium unify"):
            send("model", here, everybody)
    answers = [json.loads(line) for line in outputs["collegium predict model headlines.txt"].splitlines()]
    assert [answer["text"] for answer in answers] == ["the old cow", "new wheat here"]
    assert all(0 < answer["probability"] <= 1 for answer in answers)
    listed = next(output for command, output in outputs.items() if command.startswith("collegium owners list"))
    assert all(owner in listed for owner in OWNERS)
    changed = {
        name: read_unified(machines["coordinator"] / name).experts for name in ("model-without-cinema", "model-again")
    }
    assert changed == {"model-without-cinema": ["newsroom"], "model-again": ["newsroom", "cinema"]}
    assert (machines["coordinator"] / "page.html").exists()


def test_the_memory_of_releases_belongs_to_the_data_whatever_the_charter_calls_the_owner(tmp_path: Path) -> None:
    data = tmp_path / "texts.jsonl"
    data.touch()
    stores = {
        store_beside(OwnerRecipe(name=name, data=str(data)), tmp_path / "elsewhere" / f"{name}.yaml")
        for name in ("newsroom", "newsroom-two")
    }
    assert stores == {tmp_path / ".collegium"}


def test_the_coordinator_never_needs_private_data_and_owners_never_need_each_other(machines: dict[str, Path]) -> None:
    recipe = yaml.safe_load((machines["coordinator"] / "coordinator.yaml").read_text())
    assert all("data" not in owner for owner in recipe["owners"].values())
