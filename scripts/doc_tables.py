"""Puts results into the README and the docs, between the lines `<!-- SUITE -->` and `<!-- end of SUITE -->`.

    python scripts/doc_tables.py results/text runs/bench/joint-vs-sequential

Of each folder the `table.md`, in every page that has a place for a table of that name. Where a line says `<!-- SUITE in
short -->` the columns of the single domains are left out. `make tables` does it for all of results/.
"""

import re
import sys
from pathlib import Path

PAGES = [Path("README.md"), *sorted(Path("docs").glob("*.md"))]


def main(folders: list[Path], pages: list[Path]) -> None:
    for folder in folders:
        table = (folder / "table.md").read_text(encoding="utf-8").strip()
        if not sum(_put(table, folder.name, page) for page in pages):
            name = folder.name
            sys.exit(f"No page has a place for {name}; expected the lines <!-- {name} --> and <!-- end of {name} -->")


def _put(table: str, suite: str, page: Path) -> int:
    """The number of places that were filled."""
    text, places = page.read_text(encoding="utf-8"), 0
    for mark, content in ((suite, table), (f"{suite} in short", shortened(table))):
        pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end of {suite} -->)", re.DOTALL)
        text, found = pattern.subn(lambda match, new=content: f"{match[1]}{new}\n{match[2]}", text)
        places += found
    if places:
        page.write_text(text, encoding="utf-8")
    return places


def shortened(table: str) -> str:
    """The first table alone: method, mean, told, and what follows; whole where there is no mean."""
    lines = table.split("\n\n", maxsplit=1)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    first = rows[0].index("mean") if "mean" in rows[0] else 1
    return "\n".join("| " + " | ".join([row[0], *row[first:]]) + " |" for row in rows)


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]], PAGES)
