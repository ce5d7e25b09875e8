"""Writes safetensors files from parts of others: bytes are copied in blocks, nothing is loaded.

A value passes through torch only where it changes (another dtype, merged LoRA factors, an average), and then some
values at a time. Memory is a few blocks, whatever the size of the model; time is that of reading and writing.
"""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from collegium.core.errors import InputError, RunError
from collegium.core.progress import progress_bar
from collegium.unify.checkpoint import FLOATS, INDEX, WEIGHTS, WIDTHS, Source, StoredTensor, fill

BLOCK = 1 << 20  # bytes copied at a time: they stay in the processor's cache; 8 MB took 1.6 times as long
VALUES = 1 << 20  # values computed at a time
SHARD = 5 * 10**9  # bytes of one file


@dataclass(frozen=True)
class Constant:
    """A small tensor in memory, such as a router's."""

    tensor: Shaped[Tensor, "..."]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def values(self, first: int, count: int) -> Shaped[Tensor, " values"]:
        return self.tensor.reshape(-1)[first : first + count]


@dataclass(frozen=True)
class Average:
    """The mean of tensors of one shape, summed in float32."""

    members: Sequence[Source]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.members[0].shape

    def values(self, first: int, count: int) -> Float[Tensor, " values"]:
        total = self.members[0].values(first, count).float()
        for member in self.members[1:]:
            total = total + member.values(first, count).float()
        return total / len(self.members)


@dataclass(frozen=True)
class Output:
    """A tensor to be written.

    Attributes:
        dtype: as safetensors names it.
    """

    name: str
    dtype: str
    source: Source

    @property
    def num_bytes(self) -> int:
        return math.prod(self.source.shape) * WIDTHS[self.dtype]


def write_outputs(folder: Path, outputs: Sequence[Output], shard_bytes: int = SHARD) -> None:
    """Write `model.safetensors`, or shards with an index where it would be larger than `shard_bytes`.

    Raises:
        RunError: the disk has no room for it; nothing is written.
        InputError: a finite value has no finite counterpart in the dtype asked for.
    """
    total = sum(output.num_bytes for output in outputs)
    free = shutil.disk_usage(folder).free
    if total > free:
        raise RunError(
            "The model does not fit on the disk.",
            got=f"{free:,} bytes free",
            expected=f"{total:,} bytes for the weights alone",
            do="free some space or name another folder",
        )
    shards = _shards(outputs, shard_bytes)
    names = [WEIGHTS] if len(shards) == 1 else [_shard_name(i, len(shards)) for i in range(len(shards))]
    with progress_bar("write the model", len(outputs)) as bar:
        for name, shard in zip(names, shards, strict=True):
            with (folder / name).open("wb", buffering=0) as file:
                _write_all(file, _header(shard))
                for output in shard:
                    for block in _blocks(output):
                        _write_all(file, block)
                    bar.advance()
    if len(shards) > 1:
        listed = {output.name: name for name, shard in zip(names, shards, strict=True) for output in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(listed.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(outputs: Sequence[Output], shard_bytes: int) -> list[list[Output]]:
    shards: list[list[Output]] = []
    held = 0
    for output in outputs:
        if not shards or held + output.num_bytes > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(output)
        held += output.num_bytes
    # wide values first: then every tensor starts at a multiple of its own width
    return [sorted(shard, key=lambda output: (-WIDTHS[output.dtype], output.name)) for shard in shards]


def _shard_name(index: int, count: int) -> str:
    stem, _, suffix = WEIGHTS.rpartition(".")
    return f"{stem}-{index + 1:05d}-of-{count:05d}.{suffix}"


def _header(outputs: Sequence[Output]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for output in outputs:
        start, end = end, end + output.num_bytes
        header[output.name] = {"dtype": output.dtype, "shape": list(output.source.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _blocks(output: Output) -> Iterator[memoryview]:
    """The bytes of a tensor; a block is valid until the next one is asked for."""
    source = output.source
    if isinstance(source, StoredTensor) and source.dtype == output.dtype:
        yield from copied(source)
        return
    size = math.prod(source.shape)
    for first in range(0, size, VALUES):
        values = source.values(first, min(VALUES, size - first))
        cast = values.to(FLOATS[output.dtype])
        if cast.dtype != values.dtype and not torch.isfinite(cast).all():
            raise InputError(
                f"{output.name} holds values that {output.dtype} cannot represent.",
                got=f"up to {float(values.abs().max()):.4g}",
                expected=f"at most {torch.finfo(cast.dtype).max:.4g}",
                do="choose another --dtype: bfloat16 reaches as far as float32",
            )
        yield memoryview(cast.contiguous().view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]


def copied(tensor: StoredTensor) -> Iterator[memoryview]:
    """The bytes of a tensor on disk; a block is valid until the next one is asked for."""
    buffer = memoryview(bytearray(min(BLOCK, tensor.num_bytes)))
    with tensor.file.open("rb", buffering=0) as file:
        file.seek(tensor.start)
        left = tensor.num_bytes
        while left:
            block = buffer[: min(left, len(buffer))]
            fill(file, block, tensor.file)
            yield block
            left -= len(block)


def _write_all(file: object, block: bytes | memoryview) -> None:
    view = memoryview(block)
    while view:
        view = view[file.write(view) :]  # pyright: ignore[reportAttributeAccessIssue]
