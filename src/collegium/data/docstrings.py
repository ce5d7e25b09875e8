"""Which installed Python library does a docstring document? Technical texts that every machine of ours has.

The sources are parsed, never imported. A text is the beginning of the docstring of a public class or
function, before the list of its parameters, with every mention of a library masked, so that the answer does
not stand in the text. The files are visited in the order of the hash of their names: a capped number of texts
is then spread over the whole library. The texts change with the versions of the libraries; compare results
only between runs in one environment.
"""

import ast
import gc
import hashlib
import importlib.util
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collegium.core.errors import DataError
from collegium.data.rows import Examples

# Name in texts for people → name of the package that is imported.
LIBRARIES = {
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "pandas": "pandas",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "torch": "torch",
    "transformers": "transformers",
}
MOST_TEXTS = 800  # of one library: loads in seconds, and no library is much rarer than another
FEWEST_WORDS, MOST_WORDS = 8, 60
SKIPPED_FOLDERS = {
    *("tests", "test", "testing", "conftest.py"),
    *("externals", "_external", "_vendor", "_vendored", "third_party", "array_api_compat", "array_api_extra"),
}
MASK = "…"
MENTION = re.compile(
    r"\b\w*(?:numpy|scipy|scikits?|sklearn|pandas|matplotlib|pyplot|torch|transformers|hugging[ -]?face)\w*"
    r"(?:[ -]learn\b)?|\b(?:np|sp|pd|plt|mpl|hf)\b",
    re.IGNORECASE,
)
SECTION = re.compile(  # where the description ends, in the styles of all seven
    r"^(-{3,}|={3,}|~{3,}|>>>|\.\. |```|:\w+|@|\w+ \(.*\)\s*:"
    r"|((keyword )?arguments|args|parameters|params|returns?|raises|yields|examples?|inputs?|outputs?|notes?"
    r"|attributes|shape|see also|references)\s*:?\s*$)",
    re.IGNORECASE,
)


def load_docstrings() -> Examples:
    """Texts of all libraries, at most `MOST_TEXTS` of each, without those that stand in more than one
    library.

    Raises:
        DataError: a library is not installed.
    """
    owners: dict[str, set[str]] = {}
    found: list[tuple[str, str]] = []
    with _without_garbage_collection():
        for library, package in LIBRARIES.items():
            for text in _texts_of(library, _folder_of(library, package)):
                found.append((text, library))
                owners.setdefault(text, set()).add(library)
    kept = [(text, library) for text, library in found if len(owners[text]) == 1]
    return Examples([text for text, _ in kept], [library for _, library in kept])


def _folder_of(library: str, package: str) -> Path:
    spec = importlib.util.find_spec(package)  # of a top-level package this imports nothing
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"The docstrings of {library} cannot be read: it is not installed.", do=f"pip install {library}"
        )
    return Path(spec.submodule_search_locations[0])


def _texts_of(library: str, folder: Path) -> list[str]:
    texts: dict[str, None] = {}
    for file in sorted(_source_files(folder), key=lambda file: _hash_of(library, file.relative_to(folder))):
        for docstring in _public_docstrings(file):
            text = beginning_of(docstring)
            if text is not None:
                texts[text] = None
            if len(texts) == MOST_TEXTS:
                return list(texts)
    return list(texts)


def _source_files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*.py"):
        if not SKIPPED_FOLDERS.intersection(file.relative_to(folder).parts):
            yield file


def _hash_of(library: str, path: Path) -> str:
    return hashlib.sha256(f"{library}/{path.as_posix()}".encode()).hexdigest()


def _public_docstrings(file: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes in the sources of others
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # a template or a file for another version of Python
    yield from _docstrings_of(tree.body)


def _docstrings_of(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
            if isinstance(node, ast.ClassDef):
                yield from _docstrings_of(node.body)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Syntax trees are many small objects without cycles; looking for some takes longer than parsing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def beginning_of(docstring: str) -> str | None:
    """The description at the beginning, masked, in at most `MOST_WORDS` words; None if it has too few."""
    lines: list[str] = []
    for line in docstring.splitlines():
        stripped = line.strip()
        if SECTION.match(stripped):
            if set(stripped) <= set("-=~") and lines:
                lines.pop()  # the heading above the rule
            break
        lines.append(stripped)
    text = MENTION.sub(MASK, " ".join(" ".join(lines).split()))
    words = text.split()
    if sum(word.strip(MASK + ".,:;()`'\"") != "" for word in words) < FEWEST_WORDS:
        return None
    return " ".join(words[:MOST_WORDS])
