"""WordNet 3.0 glosses as short public texts: the definition of a word sense, labelled with its lexicographer
category.

Format: the manual pages wndb(5WN) and lexnames(5WN) of WordNet. A line of a data file is
`offset lex_filenum pos … | gloss`; the gloss is a definition, then example sentences in quotes, which are
left out. Noun categories keep their names ("animal"). Some verb categories have the same names ("body"), so
they are called "body verb"; adjectives and adverbs have no topics and are named by their kind. That makes 45
different labels.
"""

import re

from collegium.core.errors import DataError
from collegium.data.find_folder import find_folder
from collegium.data.rows import Examples

DATA_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
ENVIRONMENT_VARIABLE = "COLLEGIUM_WORDNET"
PLACES = (".cache/wordnet", "/usr/share/wordnet")

# By lex_filenum, 00 to 44.
CATEGORIES = (
    *("adjective", "relational adjective", "adverb"),
    *("top concept", "act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event"),
    *(
        "feeling",
        "food",
        "group",
        "location",
        "motive",
        "object",
        "person",
        "phenomenon",
        "plant",
        "possession",
    ),
    *("process", "quantity", "relation", "shape", "state", "substance", "time"),
    *(
        "body verb",
        "change verb",
        "cognition verb",
        "communication verb",
        "competition verb",
        "consumption verb",
    ),
    *("contact verb", "creation verb", "emotion verb", "motion verb", "perception verb", "possession verb"),
    *("social verb", "stative verb", "weather verb"),
    "participial adjective",
)

FIRST_EXAMPLE = re.compile(r'(?:[;:,]|(?<=\)))\s*(?:(?:as in|e\.g\.),?\s*)*"')
LONE_EXAMPLE = re.compile(r'\s+"(?:[^"\s]+\s+){3,}[^"]*"[\s;.]*$')  # no delimiter before it


def load_wordnet() -> Examples:
    """All glosses of the four data files.

    The folder is that of the environment variable COLLEGIUM_WORDNET, `.cache/wordnet` under the current
    folder, or `/usr/share/wordnet`, whichever comes first.

    Raises:
        DataError: WordNet is in none of these places, or a line is not as the format says.
    """
    folder = find_folder(
        "WordNet",
        ENVIRONMENT_VARIABLE,
        PLACES,
        DATA_FILES,
        do="run `sh scripts/fetch_debian.sh wordnet .cache/wordnet` (Debian or Ubuntu, without root) or "
        f"`apt install wordnet-base`, or name a copy in {ENVIRONMENT_VARIABLE}",
    )
    texts: list[str] = []
    labels: list[str] = []
    for name in DATA_FILES:
        lines = (folder / name).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        for number, line in enumerate(lines, start=1):
            if line.startswith("  ") or not line.strip():
                continue  # the licence stands at the top, indented
            text, label = _parse_line(line, f"{folder / name}, line {number}")
            texts.append(text)
            labels.append(label)
    return Examples(texts, labels)


def _parse_line(line: str, place: str) -> tuple[str, str]:
    fields, separator, gloss = line.partition(" | ")
    try:
        category = CATEGORIES[int(fields.split(" ", 2)[1])]
    except (IndexError, ValueError):
        separator = category = ""
    if not separator:
        raise DataError(f"{place} is no line of WordNet.", expected="offset lex_filenum … | gloss", do="fetch it again")
    gloss = gloss.strip()
    return _definition(gloss) or gloss, category


def _definition(gloss: str) -> str:
    """The gloss without its example sentences; a quoted word inside the definition stays."""
    example = FIRST_EXAMPLE.search(gloss)
    definition = gloss[: example.start()] if example else gloss
    return LONE_EXAMPLE.sub("", definition).strip(" ;:,").removesuffix("e.g.").rstrip(" ;:,(")
