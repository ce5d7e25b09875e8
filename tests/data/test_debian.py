"""Debian's package descriptions: the step that joins apt's lists, and the loader, on lists written by hand."""

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from collegium.core.errors import DataError
from collegium.data import debian
from collegium.data.catalogue import CATALOGUE
from collegium.data.debian import FILE, SECTIONS, beginning_of, load_debian_sections

JOIN = Path(__file__).parents[2] / "scripts" / "join_descriptions.py"
PACKAGES = """Package: zoo
Version: 2
Section: universe/games
Description: keeps animals
Description-md5: b2
Tag: game::a,
 game::b

Package: foreign
Section: games
Description: only a synopsis

Package: ant
Section: sound
Description: hums
Description-md5: a1
"""
TRANSLATION = """Package: ant
Description-md5: a1
Description-en: hums
 It hums: ♪
 .
 All day.

Package: zoo
Description-md5: b1
Description-en: keeps one animal
 An older version.

Package: zoo
Description-md5: b2
Description-en: keeps animals
"""


def join(lists: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(JOIN), str(lists), str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_lists_and_descriptions_are_joined_by_name_and_version(tmp_path):
    (tmp_path / "a_Packages").write_text(PACKAGES.replace("b2", "b1"), encoding="utf-8")
    (tmp_path / "b_Packages").write_text(PACKAGES, encoding="utf-8")
    (tmp_path / "a_i18n_Translation-en").write_text(TRANSLATION, encoding="utf-8")
    done = [join(tmp_path, tmp_path / name) for name in ("one.gz", "two.gz")]
    assert [one.returncode for one in done] == [0, 0]
    lines = gzip.decompress((tmp_path / "one.gz").read_bytes()).decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"package": "ant", "section": "sound", "description": "hums\nIt hums: ♪\n.\nAll day."},
        {"package": "zoo", "section": "games", "description": "keeps animals"},
    ]
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_lists_without_descriptions_make_no_file(tmp_path):
    (tmp_path / "a_Packages").write_text(PACKAGES, encoding="utf-8")
    failed = join(tmp_path, tmp_path / "out.gz")
    assert failed.returncode == 1
    assert failed.stderr == f"no package in {tmp_path} has an English description\n"
    assert not (tmp_path / "out.gz").exists()


def sentence(word: str) -> str:
    return " ".join(f"{word}{number}" for number in range(12)) + "."


def write(folder: Path, records: list[tuple[str, str, str]]) -> None:
    with gzip.open(folder / FILE, "wt", encoding="utf-8") as file:
        for name, section, description in records:
            file.write(json.dumps({"package": name, "section": section, "description": description}) + "\n")


@pytest.fixture
def one_of_each(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLEGIUM_DEBIAN", str(tmp_path))
    return [(section, section, f"about {section}\n{sentence(section)}") for section in SECTIONS]


def test_texts_are_labelled_by_section_and_other_sections_left_out(tmp_path, one_of_each):
    write(tmp_path, [*one_of_each, ("libc", "libs", f"the C library\n{sentence('libc')}")])
    examples = CATALOGUE["debian-sections"].load()
    assert dict(zip(examples.labels or [], examples.texts)) == {
        name: f"about {section}. {sentence(section)}" for section, name in SECTIONS.items()
    }
    assert len(examples) == 10


@pytest.mark.parametrize(
    "variant",
    [
        f"About games (documentation)\n{sentence('else')}",
        f"about games - data files\n{sentence('else')}",
        f"something else\nThis is its part.\n.\n{sentence('games')}",
        f"something else\nHere it comes. {sentence('games')} And it goes.",
    ],
)
def test_of_variants_of_a_package_only_the_shortest_name_stays(tmp_path, one_of_each, variant):
    write(tmp_path, [("games-doc", "games", variant), *one_of_each])
    assert f"about games. {sentence('games')}" in load_debian_sections().texts
    assert len(load_debian_sections()) == 10


def test_a_large_section_is_cut_to_the_same_packages_in_any_order(tmp_path, one_of_each, monkeypatch):
    monkeypatch.setattr(debian, "MOST_TEXTS", 5)
    many = [(f"game{n}", "games", f"game number {n}\n{sentence(f'g{n}x')}") for n in range(20)]
    write(tmp_path, [*one_of_each, *many])
    examples = load_debian_sections()
    write(tmp_path, [*reversed(many), *one_of_each])
    assert load_debian_sections() == examples
    assert Counter(examples.labels) == dict.fromkeys(SECTIONS.values(), 1) | {"games": 5}


@pytest.mark.parametrize(
    ("description", "text"),
    [
        (
            "plays a song!\nIt has\n * many songs\n - no words\n.\nHomepage: here\nSee https://a.example/b for more.",
            "plays a song! It has many songs no words See for more.",
        ),
        ("plays a song\none two three four five", "plays a song. one two three four five"),
        ("plays a song\none two three four", None),
        ("plays a song (transitional package)\none two three four five six seven", None),
        ("plays a song\nThis metapackage pulls in one two three four five six", None),
    ],
)
def test_a_text_is_the_synopsis_and_the_beginning(description, text):
    assert beginning_of(description) == text


def test_a_long_description_is_cut():
    assert len((beginning_of("synopsis\n" + "word " * 100) or "").split()) == 60


@pytest.mark.parametrize("line", ["no JSON", '{"package": "a", "section": "games"}', "[]"])
def test_a_line_of_another_kind_is_named(tmp_path, one_of_each, line):
    write(tmp_path, one_of_each)
    with gzip.open(tmp_path / FILE, "at", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=rf"{FILE}, line 11 is no line of package descriptions") as caught:
        load_debian_sections()
    assert 'expected: gzip of lines {"package": …' in str(caught.value)


def test_a_file_that_is_cut_off_is_an_error(tmp_path, one_of_each):
    write(tmp_path, one_of_each)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-20])
    with pytest.raises(DataError, match="is no line of package descriptions"):
        load_debian_sections()


def test_a_section_without_packages_is_named(tmp_path, one_of_each):
    write(tmp_path, one_of_each[1:])
    with pytest.raises(DataError, match="none in databases"):
        load_debian_sections()


def test_without_the_file_the_error_says_how_to_fetch_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLEGIUM_DEBIAN", str(tmp_path))
    with pytest.raises(DataError, match=r"scripts/fetch_debian\.sh sections"):
        load_debian_sections()
