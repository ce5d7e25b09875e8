"""The errors of Collegium, drawn first.

    CollegiumError
    ├── InputError                what the user gave is wrong: exit code 2
    │   ├── RecipeError           a recipe or an override
    │   ├── DataError             a data file, a row, a column
    │   ├── ArtifactError         a folder that is no intact artifact of the expected kind
    │   ├── IncompatibleSeedModel another seed model than the charter's
    │   ├── InvalidContribution   a contribution that must not be merged
    │   ├── IncompatibleExperts   fine-tunes that do not fit together; all their faults are listed
    │   └── ReleaseRefused        a release that would tell more than the owner agreed to
    └── RunError                  the run failed though the input was right: exit code 1

Every message says what is wrong, what was got, what was expected, and what to do.
"""


class CollegiumError(Exception):
    """One clear error. `what` is a full sentence; `got`, `expected` and `do` complete it where they help."""

    exit_code = 1

    def __init__(self, what: str, *, got: object = None, expected: object = None, do: str | None = None):
        self.what, self.got, self.expected, self.do = what, got, expected, do
        parts = [what]
        if got is not None:
            parts.append(f"got: {got}")
        if expected is not None:
            parts.append(f"expected: {expected}")
        if do is not None:
            parts.append(f"what to do: {do}")
        super().__init__("\n  ".join(parts))


class InputError(CollegiumError):
    """Something that the user gave is wrong."""

    exit_code = 2


class RecipeError(InputError):
    """A recipe or an override is wrong; all its faults are listed together."""


class DataError(InputError):
    """A data file, a row or a column is wrong; the file and the row are named."""


class ArtifactError(InputError):
    """A folder is not an intact artifact of the expected kind."""


class IncompatibleSeedModel(InputError):
    """The seed model differs from the one in the charter."""


class InvalidContribution(InputError):
    """A contribution is refused; the file or tensor at fault is named."""


class IncompatibleExperts(InputError):
    """Fine-tuned models that cannot be merged; everything at fault is listed together, with the expert's name."""


class ReleaseRefused(InputError):
    """A release is refused because it would reveal more about private data than was agreed."""


class RunError(CollegiumError):
    """The run failed though the input was right (full disk, non-finite loss, …)."""
