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
from safetensors import SafetensorError

from collegium.benchmarks.statistics import Scores
from collegium.core.errors import ArtifactError, RecipeError
from collegium.core.load_recipe import parse_settings
from collegium.core.settings import Settings
from collegium.flow.summary import PACKAGES


@dataclass(frozen=True)
class Found:
    """What one method found with one seed.

    Attributes:
        values: by column of the table.
        scores: of what was judged, for paired differences.
        asked: digest of what was judged: scores of another digest are not compared.
        also: further scores of the same, with a difference of their own; by the keys of `Kind.also`.
    """

    values: dict[str, float]
    scores: Scores
    asked: str
    also: dict[str, Scores] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a finished cell found.

    Attributes:
        found: by method; "" is the variant itself.
        settings: of its recipe, as JSON.
        created_with: versions, and the number of threads.
        stages: stage → seconds, peak_bytes.
    """

    found: dict[str, Found]
    settings: dict[str, Any]
    created_with: dict[str, Any]
    stages: dict[str, dict[str, int | float]]

    def of(self, recipe: Settings) -> bool:
        """Whether this recipe was run. A key that there was not yet had the value that is now its default."""
        try:
            return parse_settings(self.settings, type(recipe)) == recipe
        except RecipeError:
            return False

    def has_others(self) -> bool:
        """Whether methods were run beside the variant, and kept."""
        return len(self.found) > 1

    def same_versions(self) -> bool:
        """Whether it was run with the versions that are installed."""
        return all(self.created_with[package] == version(package) for package in PACKAGES)


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
        also: scores that are compared beside those of `judged`; key of the value → heading.
        validation: keys of a recipe with which choices are made.
    """

    title: ClassVar[str]
    unit: ClassVar[str]
    judged: ClassVar[str]
    also: ClassVar[dict[str, str]] = {}
    validation: ClassVar[dict[str, str]]

    @abstractmethod
    def run(self, recipe: Any, folder: Path, out: Path) -> None:
        """Run a cell in `folder`, or what is left of it; `out` is the suite's."""

    def outcome(self, folder: Path, others: bool) -> Outcome | None:
        """What `read` finds; None where the run is not finished, or is of a version whose files were others."""
        try:
            return self.read(folder, others)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, ArtifactError):
            return None

    @abstractmethod
    def read(self, folder: Path, others: bool) -> Outcome:
        """What the cell of a finished run folder found; whatever error where it is none.

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
