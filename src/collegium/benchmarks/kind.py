"""What a suite must know of the runs that its cells are: how one is run, and what it found.

There are two: runs of the one-shot flow (`one_shot.py`) and federations (`federation.py`). Cells, tables and statistics
know this interface alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure

from collegium.benchmarks.statistics import Scores
from collegium.flow.summary import PACKAGES

Summary = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What one method found with one seed.

    Attributes:
        values: by column of the table.
        scores: of what was judged, for paired differences.
        asked: digest of what was judged: scores of another digest are not compared.
        metrics: for the records, as JSON.
    """

    values: dict[str, float]
    scores: Scores
    asked: str
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, the key of its values, and digits behind the point."""

    heading: str
    key: str
    digits: int = 1


class Kind(ABC):
    """Runs of one kind of recipe.

    Attributes:
        title: heads the column of methods.
        unit: what is drawn within a seed for the interval of a difference.
        judged: key of the value by which candidates are chosen; more is better.
        validation: keys of a recipe with which choices are made.
    """

    title: ClassVar[str]
    unit: ClassVar[str]
    judged: ClassVar[str]
    validation: ClassVar[dict[str, str]]

    @abstractmethod
    def run(self, recipe: Any, folder: Path, out: Path) -> None:
        """Run a cell in `folder`, or what is left of it; `out` is the suite's."""

    @abstractmethod
    def summary(self, recipe: Any, folder: Path) -> Summary | None:
        """What a cell found, with `created_with` and `stages`; None where it is not finished with exactly these
        settings and versions.
        """

    @abstractmethod
    def found(self, folder: Path, summary: Summary, others: bool) -> dict[str, Found]:
        """By method; "" is the variant itself.

        Args:
            others: with the methods that were run beside it.
        """

    @abstractmethod
    def columns(self, keys: Sequence[str]) -> list[Column]:
        """The columns of the table in Markdown and LaTeX, out of the keys of all values."""

    def figures(self, title: str, folders: Mapping[str, Mapping[int, Path]]) -> dict[str, Figure]:
        """Name → figure of one case; none by default.

        Args:
            title: the case, or the suite that has none.
            folders: variant → seed → its run folder; of finished cells.
        """
        return {}


def same_versions(created_with: dict[str, Any]) -> bool:
    """Whether a run was made with the versions that are installed."""
    return all(created_with[package] == version(package) for package in PACKAGES)
