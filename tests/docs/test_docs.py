"""The pages are true: the settings page is the settings, links lead somewhere, and the README names what is there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collegium.benchmarks.run_suite import tabulate
from collegium.benchmarks.suite import load_suite
from collegium.cli.settings_page import settings_page

ROOT = Path(__file__).parents[2]
NAMED = ("README.md", "results/README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = [*(ROOT / name for name in NAMED), *sorted((ROOT / "docs").glob("*.md"))]


def test_the_settings_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_local_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_readme_maps_every_room() -> None:
    rooms = {path.name for path in (ROOT / "src" / "collegium").iterdir() if (path / "__init__.py").exists()}
    described = set(re.findall(r"^    (\w+)/", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    assert rooms == described


def test_tables_of_a_suite_go_between_their_marks(tmp_path: Path) -> None:
    table = "| union | a | mean | told |\n| --- | ---: | ---: | ---: |\n| ours | 1 | 2 | 3 |\n\nSuite mine.\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "table.md").write_text(table)
    page, other = tmp_path / "README.md", tmp_path / "docs" / "other.md"
    page.write_text("<!-- mine -->\n<!-- end of mine -->\nand\n<!-- mine in short -->\nold\n<!-- end of mine -->\n")
    other.parent.mkdir()
    other.write_text("nothing")
    command = [sys.executable, str(ROOT / "scripts" / "doc_tables.py"), str(tmp_path / "mine")]
    for _ in range(2):  # the second time changes nothing
        subprocess.run(command, check=True, cwd=tmp_path)
        short = "| union | mean | told |\n| --- | ---: | ---: |\n| ours | 2 | 3 |"
        whole = f"<!-- mine -->\n{table.strip()}\n<!-- end of mine -->\n"
        assert page.read_text() == f"{whole}and\n<!-- mine in short -->\n{short}\n<!-- end of mine -->\n"
        assert other.read_text() == "nothing"
    page.write_text("nothing")
    assert subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True).returncode == 1


@pytest.mark.parametrize("folder", sorted((ROOT / "results").glob("*/")), ids=lambda folder: folder.name)
def test_tables_are_those_of_the_records(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shutil.copy(folder / "rows.jsonl", tmp_path)
    suite, path = load_suite(folder.name)
    results = tabulate(suite, path, tmp_path)
    assert results.rows
    table = (tmp_path / "table.md").read_text().strip()
    assert any(f"<!-- {suite.name} -->\n{table}\n" in page.read_text() for page in PAGES)
    assert (tmp_path / "rows.jsonl").read_bytes() == (folder / "rows.jsonl").read_bytes()  # of settings of now, all
