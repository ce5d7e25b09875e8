"""The WordNet parser on a hand-written folder, and the script that fetches the real one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from collegium.core.errors import DataError
from collegium.data.wordnet import CATEGORIES, DATA_FILES, load_wordnet

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_debian.sh"
LINES = {
    "data.noun": [
        "  1 This software and database is being provided to you, the LICENSEE, by  ",
        '00001740 05 n 01 cat 0 000 | feline mammal; kept as a pet; "the cat sat"; "cats | dogs"  ',
        '00001741 04 n 01 step 0 000 | putting one foot before the other: "step by step to the top"  ',
        '00001742 03 n 01 thing 0 000 | progress (in the phrase "make strides"); "they made big strides"  ',
    ],
    "data.verb": ['00001743 29 v 01 yawn 0 000 01 + 02 00 | open the mouth wide, "he yawned and yawned"  '],
    "data.adj": ['00001744 44 a 01 bent 0 000 | of metal e.g.; "bent nails"  '],
    "data.adv": ["00001745 02 r 01 soon 0 000 | in the near future  "],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, lines in LINES.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setenv("COLLEGIUM_WORDNET", str(tmp_path))
    return tmp_path


def test_texts_are_definitions_and_labels_are_categories(folder):
    examples = load_wordnet()
    assert dict(zip(examples.texts, examples.labels or [], strict=True)) == {
        "feline mammal; kept as a pet": "animal",
        "putting one foot before the other": "act",
        'progress (in the phrase "make strides")': "top concept",
        "open the mouth wide": "body verb",
        "of metal": "participial adjective",
        "in the near future": "adverb",
    }


def test_the_45_categories_are_different():
    assert len(CATEGORIES) == len(set(CATEGORIES)) == 45


@pytest.mark.parametrize("line", ["00001740 05 n 01 cat 0 000", "00001740 99 n 01 cat | feline", "cat | feline"])
def test_a_line_of_another_kind_is_named(folder, line):
    (folder / "data.adv").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.adv, line 1 is no line of WordNet"):
        load_wordnet()


def test_the_current_folder_is_searched_after_the_environment_variable(folder, tmp_path, monkeypatch):
    cache = tmp_path / "project" / ".cache" / "wordnet"
    cache.mkdir(parents=True)
    for name in DATA_FILES:
        (cache / name).write_text(LINES[name][-1] + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "project")
    assert len(load_wordnet()) == 6
    monkeypatch.delenv("COLLEGIUM_WORDNET")
    assert len(load_wordnet()) == 4


def test_without_wordnet_the_error_says_how_to_fetch_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLEGIUM_WORDNET", str(tmp_path))
    with pytest.raises(DataError, match=r"scripts/fetch_debian\.sh wordnet") as caught:
        load_wordnet()
    assert f"COLLEGIUM_WORDNET={tmp_path}" in str(caught.value)


def run_script(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({} if path is None else {"PATH": path})
    command = [shutil.which("sh") or "sh", str(SCRIPT), "wordnet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_script_does_nothing_where_everything_is_there(folder, tmp_path):
    (folder / "copyright").write_text("licence", encoding="utf-8")
    done = run_script(str(folder), path=str(tmp_path / "no-programs"))
    assert done.returncode == 0
    assert "already" in done.stdout


def test_the_script_fails_with_one_line_without_apt(tmp_path):
    failed = run_script(str(tmp_path / "new"), path=str(tmp_path / "no-programs"))
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert "apt-get is missing" in failed.stderr
    assert not (tmp_path / "new").exists()
    assert run_script().returncode == 1
