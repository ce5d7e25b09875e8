"""Puts a suite's results into the docs, between the lines `<!-- SUITE -->` and `<!-- end of SUITE -->`.

    python scripts/doc_tables.py runs/bench/text docs/benchmarks.md README.md

Where a line says `<!-- SUITE in short -->` the columns of the single domains are left out.
"""

import re
import sys
from pathlib import Path


def main(folder: Path, pages: list[Path]) -> None:
    table = (folder / "table.md").read_text(encoding="utf-8").strip()
    suite = folder.name
    for page in pages:
        text, places = page.read_text(encoding="utf-8"), 0
        for mark, content in ((suite, table), (f"{suite} in short", shortened(table))):
            pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end of {suite} -->)", re.DOTALL)
            text, found = pattern.subn(lambda match, new=content: f"{match[1]}{new}\n{match[2]}", text)
            places += found
        if not places:
            sys.exit(
                f"{page} has no place for {suite}; expected the lines <!-- {suite} --> and <!-- end of {suite} -->"
            )
        page.write_text(text, encoding="utf-8")


def shortened(table: str) -> str:
    """The first table alone: method, mean, told, and what follows."""
    lines = table.split("\n\n", maxsplit=1)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    first = rows[0].index("mean")
    return "\n".join("| " + " | ".join([row[0], *row[first:]]) + " |" for row in rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(page) for page in sys.argv[2:]])
