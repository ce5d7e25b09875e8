"""Turns the raw cells of a table, or the files of a folder, into pictures; what is none is a fault of its row."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collegium.data.images import picture_of
from collegium.data.rows import Table


def with_pictures(table: Table, folder: Path = Path()) -> Table:
    """`table` with a `Picture` in place of each cell of its item column.

    Args:
        folder: what paths in the cells are relative to.
    """
    faults = dict(table.faults)
    pictures: list[object] = []
    for index, value in enumerate(table.texts):
        picture = None
        if index not in faults:
            try:
                picture = picture_of(value, folder)
            except ValueError as error:
                faults[index] = str(error)
        pictures.append(picture)
    return replace(table, texts=pictures, faults=faults)


def read_picture_files(folder: Path, files: Sequence[Path], labels: Sequence[object] | None) -> Table:
    """One picture in a file; a faulty file is a fault under the file's name."""
    names = [file.relative_to(folder).as_posix() for file in files]
    return with_pictures(Table(str(folder), [], names, labels, names), folder)
