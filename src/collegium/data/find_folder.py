"""Finds data that are no Python package: in the folder that an environment variable names, or in the usual places."""

import os
from collections.abc import Sequence
from pathlib import Path

from collegium.core.errors import DataError


def find_folder(name: str, variable: str, places: Sequence[str], files: Sequence[str], do: str) -> Path:
    """The first folder that holds all `files`. A variable that is set is the only place that is searched.

    Args:
        name: what is looked for, as the beginning of a sentence.
        places: folders that are searched otherwise, in this order.
        do: how to get it.

    Raises:
        DataError: it is in none of these places.
    """
    named = os.environ.get(variable)
    for place in [named] if named else places:
        if all((Path(place) / file).is_file() for file in files):
            return Path(place)
    raise DataError(
        f"{name} is not on this machine.",
        got=f"{variable}={named}" if named else f"no such files in {' or '.join(places)}",
        expected=f"a folder with {', '.join(files)}",
        do=do,
    )
