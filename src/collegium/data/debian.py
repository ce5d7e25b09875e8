"""What is a Debian package for? Descriptions of packages, labelled with the section that the archive files them in.

Ten sections are kept that are subjects and different ones. Sections such as libs, doc or oldlibs say how a package is
used, python or perl which language it is written in; electronics is too mixed to be learnt, mail too like the mails of
spam.py. Packages of one source often repeat each other's description (the program, its data, its documentation): of
those that share their synopsis or a long sentence only the one with the shortest name stays, so that no text stands in
two splits in two guises. Empty packages, which only ease upgrades or pull in others, are left out.

The archive drifts: results compare only within one fetched copy. Format: that of scripts/join_descriptions.py, made of
apt's lists (Debian Policy, 5.6.13: the first line of a description is its synopsis, a lone dot parts paragraphs).
"""

import gzip
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

from collegium.core.errors import DataError
from collegium.data.find_folder import find_folder
from collegium.data.rows import Examples

ENVIRONMENT_VARIABLE = "COLLEGIUM_DEBIAN"
PLACES = (".cache/debian-sections",)
FILE = "descriptions.jsonl.gz"

# Section of the archive → name in texts for people.
SECTIONS = {
    "database": "databases",
    "editors": "text editors",
    "fonts": "fonts",
    "games": "games",
    "graphics": "graphics",
    "hamradio": "amateur radio",
    "math": "mathematics",
    "science": "scientific research",
    "sound": "sound",
    "video": "video",
}
MOST_TEXTS = 300  # of one section, so that none is much rarer than another
FEWEST_WORDS, MOST_WORDS = 8, 60
LONG_PART = 12  # words of a sentence or paragraph; two packages that share one are variants of each other

EMPTY_PACKAGE = re.compile(r"\b(?:transitional|dummy|meta-?package|virtual package)\b", re.IGNORECASE)
VARIANT = re.compile(r"\s*(?:\([^()]*\)|(?:\s-+|[:;,])\s.*)$")  # what a synopsis adds after its subject: "(data files)"
SENTENCE_END = re.compile(r"(?<=[.!?]) ")
BULLET = re.compile(r"^\s*(?:[-*+•·]|o(?=\s))+\s+")
ADDRESS = re.compile(r"(?:<?\b(?:https?|ftp)://\S+)|(?:^\s*homepage:.*$)", re.IGNORECASE | re.MULTILINE)


def load_debian_sections() -> Examples:
    """Synopses and beginnings of descriptions, at most `MOST_TEXTS` of each section, by hash of the package's name.

    The folder is that of the environment variable COLLEGIUM_DEBIAN, or `.cache/debian-sections` under the current
    folder.

    Raises:
        DataError: the descriptions are in neither place, a line is not as the format says, or a section has no package.
    """
    folder = find_folder(
        "The list of Debian's package descriptions",
        ENVIRONMENT_VARIABLE,
        PLACES,
        [FILE],
        do="run `sh scripts/fetch_debian.sh sections .cache/debian-sections` (Debian or Ubuntu, without root), or "
        f"name a copy in {ENVIRONMENT_VARIABLE}",
    )
    records = _read(folder / FILE)
    seen: set[str] = set()
    texts: dict[str, tuple[str, str]] = {}
    for name, section, description in sorted(records, key=lambda record: (len(record[0]), record[0])):
        subjects = _subjects_of(description)
        text = beginning_of(description)
        if text is not None and seen.isdisjoint(subjects):
            texts[name] = (text, SECTIONS[section])
        seen |= subjects
    kept: list[tuple[str, str]] = []
    counts: Counter[str] = Counter()
    for name in sorted(texts, key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
        label = texts[name][1]
        if counts[label] < MOST_TEXTS:
            counts[label] += 1
            kept.append(texts[name])
    missing = [label for label in SECTIONS.values() if not counts[label]]
    if missing:
        raise DataError(
            f"{folder / FILE} has sections without packages.",
            got=f"none in {', '.join(missing)}",
            do="fetch it again from a whole archive of Debian or Ubuntu",
        )
    return Examples([text for text, _ in kept], [label for _, label in kept])


def _read(file: Path) -> list[tuple[str, str, str]]:
    """Name, section and description of each package of `SECTIONS`."""
    records: list[tuple[str, str, str]] = []
    number = 0
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                number += 1
                record = json.loads(line)
                name, section, description = record["package"], record["section"], record["description"]
                if section in SECTIONS:
                    records.append((str(name), section, str(description)))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file}, line {number or 1} is no line of package descriptions.",
            got=f"{type(error).__name__}: {error}",
            expected='gzip of lines {"package": …, "section": …, "description": …}',
            do="fetch it again",
        ) from None
    return records


def beginning_of(description: str) -> str | None:
    """Synopsis and first words of what follows, at most `MOST_WORDS`; None for an empty package or too few words."""
    synopsis, _, rest = description.partition("\n")
    if EMPTY_PACKAGE.search(synopsis) or EMPTY_PACKAGE.search(rest.split("\n.\n")[0]):
        return None
    lines = [BULLET.sub("", line) for line in ADDRESS.sub("", rest).splitlines()]
    synopsis = synopsis.strip()
    words = (synopsis + ("" if synopsis.endswith((".", "!", "?")) else ".")).split() + " ".join(lines).split()
    words = [word for word in words if word != "."]  # what parts the paragraphs
    return " ".join(words[:MOST_WORDS]) if len(words) >= FEWEST_WORDS else None


def _subjects_of(description: str) -> set[str]:
    """What a package shares with its variants: its synopsis without additions, each long paragraph and sentence."""
    synopsis, _, rest = description.lower().partition("\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in rest.split("\n.\n")]
    sentences = [sentence for paragraph in paragraphs for sentence in SENTENCE_END.split(paragraph)]
    long = {part for part in [*paragraphs, *sentences] if part.count(" ") >= LONG_PART - 1}
    return {VARIANT.sub("", synopsis)} | long
