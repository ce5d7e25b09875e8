"""The pages are true: the settings page is the settings, links lead somewhere, and the README names what is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from collegium.core.settings_page import settings_page

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


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
    page = tmp_path / "page.md"
    page.write_text("<!-- mine -->\n<!-- end of mine -->\nand\n<!-- mine in short -->\nold\n<!-- end of mine -->\n")
    command = [sys.executable, str(ROOT / "scripts" / "doc_tables.py"), str(tmp_path / "mine"), str(page)]
    for _ in range(2):  # the second time changes nothing
        subprocess.run(command, check=True)
        short = "| union | mean | told |\n| --- | ---: | ---: |\n| ours | 2 | 3 |"
        whole = f"<!-- mine -->\n{table.strip()}\n<!-- end of mine -->\n"
        assert page.read_text() == f"{whole}and\n<!-- mine in short -->\n{short}\n<!-- end of mine -->\n"
    page.write_text("nothing")
    assert subprocess.run(command, check=False, capture_output=True, text=True).returncode == 1
