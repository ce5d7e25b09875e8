"""A fine-tuned model on disk, known by its headers alone: no tensor is read, no code is run.

Layout: `config.json`, and `model.safetensors` or shards with `model.safetensors.index.json`
(https://huggingface.co/docs/safetensors: 8 bytes of length, a JSON header, the values). The folder is not trusted.
What is wrong with it is collected, not raised, so that the faults of all experts can be told together.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Shaped
from torch import Tensor

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
LARGEST_HEADER = 100_000_000  # bytes, as in the safetensors library
LARGEST_JSON = 1 << 26  # bytes of a configuration or an index
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WIDTHS = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
WIDTHS |= {"F8_E4M3": 1, "F8_E5M2": 1, "F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# Buffers that older versions of transformers saved; they follow from the configuration.
NOT_WEIGHTS = (".position_ids", ".rotary_emb.inv_freq", ".masked_bias")


@runtime_checkable
class Source(Protocol):
    """A weight that tells its values piece by piece: stored, merged with LoRA factors, averaged."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def values(self, first: int, count: int) -> Shaped[Tensor, " values"]:
        """Some values in row-major order."""
        ...


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file.

    Attributes:
        dtype: as the header names it (`F32`, `BF16`, …).
        start: first byte in the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.size * WIDTHS[self.dtype]

    def values(self, first: int, count: int) -> Shaped[Tensor, " values"]:
        """Some values in row-major order, in the tensor's own dtype."""
        width = WIDTHS[self.dtype]
        if count == 0:
            return torch.empty(0, dtype=FLOATS[self.dtype])
        buffer = bytearray(count * width)
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.start + first * width)
            fill(file, memoryview(buffer), self.file)
        return torch.frombuffer(buffer, dtype=FLOATS[self.dtype])


@dataclass(frozen=True)
class Checkpoint:
    """A folder's configuration and where its tensors are.

    Attributes:
        config: the content of `config.json`.
        tensors: name → tensor, buffers left out.
        faults: what is wrong with the folder; with a fault the rest may be incomplete.
    """

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, Source]
    faults: tuple[str, ...]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read configuration, index and headers; milliseconds whatever the size of the model."""
    faults: list[str] = []
    if not folder.is_dir():
        return Checkpoint(folder, {}, {}, (f"{folder} is no folder",))
    links = sorted(entry.name for entry in folder.iterdir() if entry.is_symlink())
    if links:
        faults.append(f"holds links ({shortened(links)}), which may lead anywhere; copy the files themselves (cp -rL)")
        return Checkpoint(folder, {}, {}, tuple(faults))
    config = read_json(folder / CONFIG, faults)
    if "quantization_config" in config:
        faults.append("is quantised; save it in full precision first")
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(folder, faults):
        for name, tensor in read_header(file, faults).items():
            if name in tensors:
                faults.append(f"holds {name} twice: in {tensors[name].file.name} and {file.name}")
            tensors[name] = tensor
    if (folder / INDEX).is_file() and not faults:
        listed = read_json(folder / INDEX, faults)["weight_map"]
        absent = [name for name, file in listed.items() if name not in tensors or tensors[name].file.name != file]
        if absent:
            faults.append(f"{INDEX} names tensors that are not in their shards: {shortened(absent)}")
    weights = {name: tensor for name, tensor in tensors.items() if not name.endswith(NOT_WEIGHTS)}
    return Checkpoint(folder, config, weights, tuple(faults))


def read_header(file: Path, faults: list[str]) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file; every length is checked against the file's own."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= min(LARGEST_HEADER, size - 8):
            faults.append(f"{file.name} is no safetensors file, or was cut off")
            return {}
        raw = opened.read(length)
    tensors = {}
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            tensor = StoredTensor(file, entry["dtype"], tuple(entry["shape"]), 8 + length + start)
            if tensor.dtype not in WIDTHS or any(not isinstance(n, int) or n < 0 for n in (start, end, *tensor.shape)):
                raise ValueError(name)
            if end - start != tensor.num_bytes or 8 + length + end > size:
                raise ValueError(name)
            tensors[name] = tensor
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        faults.append(f"{file.name} has a malformed header or was cut off (at {str(error)[:80]})")
    return tensors


def read_json(file: Path, faults: list[str]) -> dict[str, Any]:
    """The mapping in a JSON file; empty, with a fault, where there is none."""
    try:
        if file.stat().st_size > LARGEST_JSON:
            raise ValueError("too large")
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("no mapping")
        return content
    except FileNotFoundError:
        faults.append(f"{file.name} is missing")
    except (OSError, ValueError, RecursionError) as error:
        faults.append(f"{file.name} cannot be read ({str(error)[:80]})")
    return {}


def fill(file: Any, buffer: memoryview, path: Path) -> None:
    """Read exactly as many bytes as the buffer holds."""
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done:])
        if not count:
            raise OSError(f"{path} became shorter while it was read")
        done += count


def layer_prefix(names: Iterable[str], layers: str) -> str:
    """What stands before the path of the layers in a checkpoint's names: '', `bert.`, `model.`, …"""
    pattern = re.compile(rf"(|.*?\.){re.escape(layers)}\.\d+\.")
    found = (pattern.match(name) for name in names)
    return next((match[1] for match in found if match), "")


def whole(source: Source) -> Shaped[Tensor, "..."]:
    """A tensor at once, for those who need it in its shape."""
    return source.values(0, math.prod(source.shape)).reshape(source.shape)


def shortened(names: Iterable[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(str(name)[:120] for name in names[:most]) + more


def _weight_files(folder: Path, faults: list[str]) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
        why = f"; pickles ({shortened(pickles)}) may run code and are never opened" if pickles else ""
        faults.append(f"has neither {WEIGHTS} nor {INDEX}{why}; save it with safetensors")
        return []
    listed = read_json(folder / INDEX, faults).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
        faults.append(f"{INDEX} has no weight_map")
        return []
    names = sorted(set(listed.values()))
    outside = [name for name in names if "/" in name or "\\" in name or "\x00" in name or name in ("", ".", "..")]
    if outside:
        faults.append(f"{INDEX} names files outside the folder: {shortened(map(repr, outside))}")
    foreign = [name for name in names if name not in outside and not name.endswith(".safetensors")]
    if foreign:
        faults.append(f"{INDEX} names files that are not safetensors: {shortened(foreign)}")
    inside = [name for name in names if name not in outside and name not in foreign]
    absent = [name for name in inside if not (folder / name).is_file()]
    if absent:
        faults.append(f"{INDEX} names shards that are not there: {shortened(absent)}")
    return [folder / name for name in inside if name not in absent]
