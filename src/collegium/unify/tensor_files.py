"""Tensors of a model folder, one at a time: read from safetensors and written to safetensors, never all in memory.

`safetensors.torch.save_file` wants every tensor of a file at once; a model of four experts would need as much memory
as disk. Here a plan names shapes and dtypes first (they are in the headers), so that the header of a new file can be
written before any tensor is read. Format: eight bytes of header length, a JSON header padded to eight bytes, the data
(https://huggingface.co/docs/safetensors). Wider dtypes come first in a file, so that every tensor is aligned.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from collegium.core.errors import ArtifactError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LARGEST_FILE = 5 * 10**9  # bytes of tensors


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that will be written.

    Attributes:
        dtype: in the words of safetensors: F32, F16, BF16.
        read: gives the tensor when its turn comes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class TensorHeader:
    """Where a tensor lies and what it is."""

    file: str
    shape: tuple[int, ...]
    dtype: str


class TensorFiles:
    """The tensors of a model folder by name; headers are read at once, a tensor when it is asked for.

    Raises:
        ArtifactError: no safetensors, a damaged file, an index that leads out of the folder, an unknown dtype.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.files = sorted({SINGLE} if not (folder / INDEX).is_file() else set(self._index().values()))
        self._headers: dict[str, TensorHeader] = {}
        try:
            for file in self.files:
                with safe_open(folder / file, framework="pt") as opened:
                    for name in opened.keys():  # noqa: SIM118 - a safe_open is no dictionary
                        header = opened.get_slice(name)
                        self._headers[name] = TensorHeader(file, tuple(header.get_shape()), header.get_dtype())
        except (OSError, SafetensorError) as error:
            raise ArtifactError(f"{folder} has no readable weights.", got=str(error), expected=SINGLE) from None
        for name in self._headers:
            if self.dtype(name) not in DTYPES:
                raise ArtifactError(
                    f"{name} in {folder} cannot be copied.", got=self.dtype(name), expected=" or ".join(DTYPES)
                )

    @property
    def names(self) -> list[str]:
        return sorted(self._headers)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._header(name).shape

    def dtype(self, name: str) -> str:
        return self._header(name).dtype

    def read(self, name: str) -> Tensor:
        """Opens the file anew: what stays mapped counts as memory until it is closed."""
        with safe_open(self.folder / self._header(name).file, framework="pt") as opened:
            return opened.get_tensor(name)

    def planned(self, name: str, new_name: str) -> PlannedTensor:
        """The same tensor under a new name."""
        return PlannedTensor(new_name, self.shape(name), self.dtype(name), lambda: self.read(name))

    def _header(self, name: str) -> TensorHeader:
        if name not in self._headers:
            raise ArtifactError(f"{self.folder} is not complete: it lacks the tensor {name}.")
        return self._headers[name]

    def _index(self) -> Mapping[str, str]:
        try:
            files = json.loads((self.folder / INDEX).read_bytes())["weight_map"]
            if all(Path(name).name == name for name in files.values()):
                return files
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise ArtifactError(f"{self.folder / INDEX} is malformed.", expected="names of files in the same folder")


def write_tensors(folder: Path, plan: Sequence[PlannedTensor], largest_file: int = LARGEST_FILE) -> None:
    """Write the planned tensors as one file, or as several with an index, in the layout that transformers reads."""
    files: list[list[PlannedTensor]] = [[]]
    for tensor in plan:
        if files[-1] and sum(one.bytes for one in files[-1]) + tensor.bytes > largest_file:
            files.append([])
        files[-1].append(tensor)
    if len(files) == 1:
        _write_file(folder / SINGLE, files[0])
        return
    names = [f"model-{number + 1:05d}-of-{len(files):05d}.safetensors" for number in range(len(files))]
    for name, tensors in zip(names, files, strict=True):
        _write_file(folder / name, tensors)
    index = {
        "metadata": {"total_size": sum(tensor.bytes for tensor in plan)},
        "weight_map": {tensor.name: name for name, tensors in zip(names, files, strict=True) for tensor in tensors},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")


def _write_file(path: Path, tensors: Sequence[PlannedTensor]) -> None:
    ordered = sorted(tensors, key=lambda one: (-DTYPES[one.dtype].itemsize, one.name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for one in ordered:
        header[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [end, end + one.bytes]}
        end += one.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for one in ordered:
            tensor = one.read().contiguous()
            assert (tuple(tensor.shape), tensor.dtype) == (one.shape, DTYPES[one.dtype])
            file.write(tensor.flatten().view(torch.uint8).numpy().data)
