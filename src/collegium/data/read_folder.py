"""Reads a folder: files or folders named by split, one sub-folder for each class, or texts alone.

    train.jsonl, test.csv, …           each file is the split that its name tells
    (`train-00000-of-00002.parquet` as well) train/…, test/…                    each folder is a split and is
    read by these same rules sports/001.txt, politics/001.txt   one text in a file, the folder's name is its
    label 001.txt, 002.txt, …                one text in a file, no labels
    bag/01.png, 01.png, …                    a picture in a file is read as a text in a file is

Hidden files and the usual companions (README, LICENSE, …) are passed over. Anything else that is not
understood is an error: a file that is silently left out would be missed by nobody.
"""

import re
from pathlib import Path

from collegium.core.errors import DataError
from collegium.core.recipe import Columns
from collegium.data.images import SUFFIXES as IMAGE_SUFFIXES
from collegium.data.read_pictures import read_picture_files
from collegium.data.read_table import READERS, read_table
from collegium.data.rows import Table

UNSPLIT = "all"
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
COMPANIONS = re.compile(r"(readme|licen[cs]e|copying|dataset_infos?\.json|.*\.(ya?ml|py)$)", re.IGNORECASE)
TEXT_SUFFIXES = {".txt", ".text", ".md", ""}


def read_folder(folder: Path, columns: Columns) -> dict[str, list[Table]]:
    """Tables by split: `train`, `validation`, `test`, or all of them under `UNSPLIT` where no name tells a
    split.

    Raises:
        DataError: the folder is empty, mixes layouts, or holds files that are not understood.
    """
    try:
        entries = _entries(folder)
        folders = [entry for entry in entries if entry.is_dir()]
        files = [entry for entry in entries if not entry.is_dir()]
        if folders and files:
            raise DataError(
                f"{folder} mixes files and folders.",
                got=f"the file {files[0].name} beside the folder {folders[0].name}",
                expected="files alone, or one folder for each class or split",
                do="move what is no data, or name the file of each split in the recipe: data: {train: …}",
            )
        if folders:
            return _read_folders(folder, folders, columns)
        if not files:
            raise DataError(f"{folder} holds no data.", got="an empty folder", do="check the path")
        return _read_files(folder, files, columns)
    except OSError as error:
        raise DataError(f"{folder} cannot be read.", got=error.strerror, do="check the path and its rights") from None


def split_of_name(name: str) -> str | None:
    """The split that a name tells: `train-0` → train, `reviews_dev` → validation, else None."""
    words = re.split(r"[^a-z]+", name.lower())
    splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    return splits.pop() if len(splits) == 1 else None


def _read_folders(folder: Path, folders: list[Path], columns: Columns) -> dict[str, list[Table]]:
    if [entry.name for entry in folders] == ["data"]:  # the layout of a hub data set that was cloned
        return read_folder(folders[0], columns)
    splits = {entry: SPLIT_NAMES.get(entry.name.lower()) for entry in folders}
    if not any(splits.values()):
        return {UNSPLIT: [_read_classes(folder, folders, columns)]}
    tables: dict[str, list[Table]] = {}
    for entry, split in splits.items():
        if split is None:
            raise _tells_no_split(entry)
        for inner_split, inner_tables in read_folder(entry, columns).items():
            if inner_split not in (UNSPLIT, split):
                raise DataError(f"{entry} holds another split.", got=inner_split, expected=split, do="move those files")
            tables.setdefault(split, []).extend(inner_tables)
    return tables


def _read_files(folder: Path, files: list[Path], columns: Columns) -> dict[str, list[Table]]:
    if all(file.suffix.lower() in IMAGE_SUFFIXES for file in files):
        return {UNSPLIT: [read_picture_files(folder, files, None)]}
    splits = {file: split_of_name(file.stem) for file in files}
    if not any(splits.values()):
        if all(file.suffix.lower() in TEXT_SUFFIXES for file in files):
            return {UNSPLIT: [_read_text_files(folder, files, None)]}
        return {UNSPLIT: [read_table(file, columns) for file in files]}
    tables: dict[str, list[Table]] = {}
    for file, split in splits.items():
        if split is None:
            raise _tells_no_split(file)
        tables.setdefault(split, []).append(read_table(file, columns))
    return tables


def _read_classes(folder: Path, classes: list[Path], columns: Columns) -> Table:
    files: list[Path] = []
    for entry in classes:
        for file in _entries(entry):
            suffix = file.suffix.lower()
            if file.is_dir() or not (suffix in TEXT_SUFFIXES | IMAGE_SUFFIXES or file.name.isdigit()):
                raise DataError(
                    f"{file} is no text file and no picture.",
                    got="a folder" if file.is_dir() else file.suffix,
                    expected="one file for each example, in a folder that is named after its class",
                    do="move it elsewhere; data files (" + ", ".join(READERS) + ") are named by split instead",
                )
            files.append(file)
    labels = None if columns.label is None else [file.parent.name for file in files]
    pictures = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if pictures and len(pictures) == len(files):
        return read_picture_files(folder, files, labels)
    if pictures:
        other = next(file for file in files if file not in pictures)
        raise DataError(f"{folder} mixes texts and pictures.", got=f"{other} and {pictures[0]}", do="part them")
    return _read_text_files(folder, files, labels)


def _read_text_files(folder: Path, files: list[Path], labels: list[str] | None) -> Table:
    texts = [file.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape") for file in files]
    return Table(str(folder), [], texts, labels, [file.relative_to(folder).as_posix() for file in files])


def _entries(folder: Path) -> list[Path]:
    return sorted(e for e in folder.iterdir() if not e.name.startswith((".", "_")) and not COMPANIONS.match(e.name))


def _tells_no_split(path: Path) -> DataError:
    return DataError(
        f"The name of {path} tells no split, though other names beside it do.",
        got=path.name,
        expected="train, validation or test in the name",
        do="rename it, move it, or name the file of each split in the recipe: data: {train: …, test: …}",
    )
