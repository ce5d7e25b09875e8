"""The pages are true: the settings page is the settings, links lead somewhere, and the README names what is there."""

import re
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
