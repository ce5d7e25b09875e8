"""The release ledger on a terminal: one short paragraph for each thing that leaves."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from collegium.reports.wording import clean


def print_ledger(entries: Sequence[Mapping[str, str]], console: Console, heading: str = "What it reveals") -> None:
    """Print releases; their texts come from owners and are not trusted."""

    def text(entry: Mapping[str, str], key: str) -> str:
        return clean(entry.get(key, "not stated"))

    console.print(f"\n{heading}", style="bold")
    for entry in entries:
        console.print(Text(f"• {text(entry, 'what')}"))
        lines = (
            f"made of: {text(entry, 'from_data')}",
            f"may tell: {text(entry, 'reveals')}",
            f"sensitivity: {text(entry, 'sensitivity')}",
            f"protection: {text(entry, 'mechanism')}, ε = {text(entry, 'epsilon')}, unit: {text(entry, 'unit')}",
        )
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 4)))
