"""A `Message` as Flower's records, and back: arrays as numpy's own format, scalars as a config record.

What comes from another machine is not believed. numpy's reader takes the memory that a header claims before it looks at
the data, so headers are read here; no type but plain numbers is taken, nothing is unpickled. Neither direction carries
the client's number: a node knows its own, and the server knows which node it asked.
"""

import io
import math
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from jaxtyping import Shaped
from numpy.lib import format as npy

from collegium.federated.protocol import Message, Scalars

ARRAYS, SCALARS, HEAD = "arrays", "scalars", "head"
NUMBERS = "biuf"  # kinds of types: bool, integers with and without sign, floating point


def to_records(message: Message, experiment: str = "") -> RecordDict:
    """All of a message but its client.

    Args:
        experiment: name of the run, under which clients keep their states.
    """
    head: dict[str, int | str] = {"server_round": message.server_round, "experiment": experiment}
    return RecordDict(
        {
            ARRAYS: ArrayRecord({name: Array(np.asarray(array)) for name, array in message.arrays.items()}),
            SCALARS: ConfigRecord(dict(message.scalars)),
            HEAD: ConfigRecord(dict(head)),
        }
    )


def from_records(content: RecordDict, client: int) -> Message:
    """The message of a client.

    Raises:
        ValueError: records that `to_records` does not make.
    """
    arrays, scalars = content.get(ARRAYS), content.get(SCALARS)
    if not isinstance(arrays, ArrayRecord) or not isinstance(scalars, ConfigRecord):
        raise ValueError(f"its records are {sorted(map(str, content))[:10]}, not {[ARRAYS, SCALARS, HEAD]}")
    if not all(isinstance(value, int | float | str) for value in scalars.values()):
        raise ValueError("a scalar is neither a number nor a text")
    server_round = head_of(content)["server_round"]
    if not isinstance(server_round, int):
        raise ValueError("the number of its round is no integer")
    return Message(
        client, server_round, {name: _array(value.data) for name, value in arrays.items()}, cast(Scalars, dict(scalars))
    )


def head_of(content: RecordDict) -> ConfigRecord:
    """`server_round` and `experiment`.

    Raises:
        ValueError: they are missing.
    """
    head = content.get(HEAD)
    if not isinstance(head, ConfigRecord) or head.keys() != {"server_round", "experiment"}:
        raise ValueError(f"a message without {HEAD}")
    return head


def _array(data: bytes) -> Shaped[np.ndarray, "..."]:
    """What `numpy.save` wrote; a copy of its own."""
    file = io.BytesIO(data)
    if npy.read_magic(file) != (1, 0):
        raise ValueError("an array of another format")
    shape, by_column, dtype = npy.read_array_header_1_0(file)
    if dtype.kind not in NUMBERS or any(length < 0 for length in shape):
        raise ValueError(f"an array of type {dtype} and shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"an array claims the shape {shape}, which its {len(data)} bytes are not")
    values = np.frombuffer(data, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if by_column else "C").copy()
