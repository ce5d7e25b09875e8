"""A line of JSON for each round; of a round that a resumed run does again the new one stays."""

import json
from pathlib import Path
from typing import Any

from collegium.core.artifacts import write_file


class RoundMetrics:
    """Lines are added at the end; the first one removes what a killed run wrote of its own and later rounds."""

    def __init__(self, path: Path):
        self.path, self.trimmed = path, False

    def read(self) -> list[dict[str, Any]]:
        """All whole lines: that of a killed process may be half written."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def add(self, line: dict[str, Any]) -> None:
        """Add a line with its `server_round`."""
        if not self.trimmed:
            kept = [one for one in self.read() if one["server_round"] < line["server_round"]]
            write_file(self.path, "".join(json.dumps(one) + "\n" for one in kept).encode())
            self.trimmed = True
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
