"""Joins apt's lists of packages with their English descriptions into one file, a line of JSON for each package.

    python3 scripts/join_descriptions.py LISTS OUT.jsonl.gz

LISTS holds what `apt-get update` writes with Acquire::Languages=en and Acquire::GzipIndexes=false: files `*_Packages`
and `*_Translation-en`, both in paragraphs of `Field: value` (deb-src-control(5)). A line of OUT has the keys `package`,
`section` and `description`. Packages of an archive without translations have only a synopsis and are left out.
The standard library is enough: scripts/fetch_debian.sh calls this before anything is installed.
"""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: join_descriptions.py LISTS OUT.jsonl.gz")
    lines = joined(Path(sys.argv[1]))
    if not lines:
        sys.exit(f"no package in {sys.argv[1]} has an English description")
    # Without a name and a time in its header, equal lists make equal files.
    with Path(sys.argv[2]).open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.write("".join(line + "\n" for line in lines).encode())


def joined(lists: Path) -> list[str]:
    """One line of JSON for each package, by name; of several versions the one in the last list that names it."""
    descriptions: dict[tuple[str, str], str] = {}
    for file in sorted(lists.glob("*_Translation-en")):
        for record in paragraphs(file):
            descriptions[record.get("Package", ""), record.get("Description-md5", "")] = record.get(
                "Description-en", ""
            )
    packages: dict[str, dict[str, str]] = {}
    for file in sorted(lists.glob("*_Packages")):
        for record in paragraphs(file):
            name = record.get("Package", "")
            description = descriptions.get((name, record.get("Description-md5", "")))
            if description:
                section = record.get("Section", "").rpartition("/")[2]  # "universe/games" is "games"
                packages[name] = {"package": name, "section": section, "description": description}
    return [json.dumps(packages[name], ensure_ascii=False) for name in sorted(packages)]


def paragraphs(file: Path) -> Iterator[dict[str, str]]:
    """The fields of each paragraph; the lines of a long value are joined by line breaks, without their first blank."""
    for block in file.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        record: dict[str, str] = {}
        field = ""
        for line in block.splitlines():
            if line.startswith((" ", "\t")):
                record[field] = record.get(field, "") + "\n" + line[1:]
            else:
                field, _, value = line.partition(":")
                record[field] = value.strip()
        if record:
            yield record


if __name__ == "__main__":
    main()
