"""Questions about values on disk, answered block by block: are two tensors equal, is every value finite.

Both run at about the speed of reading; memory is two blocks.
"""

import math

import numpy as np
import torch

from collegium.unify.byte_merge import VALUES, copied
from collegium.unify.checkpoint import Source, StoredTensor

EXPONENTS = {
    "F64": (np.uint64, 0x7FF << 52),
    "F32": (np.uint32, 0x7F80 << 16),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}


def equal(ours: Source, theirs: Source) -> bool:
    """Whether `theirs` is `ours` to the bit, after `ours` is cast to the dtype of `theirs`."""
    if isinstance(ours, StoredTensor) and isinstance(theirs, StoredTensor) and ours.dtype == theirs.dtype:
        # as bytes: memoryviews are compared value by value, which is far slower
        return all(a.tobytes() == b.tobytes() for a, b in zip(copied(ours), copied(theirs), strict=True))
    size = math.prod(ours.shape)
    for first in range(0, size, VALUES):
        count = min(VALUES, size - first)
        expected = theirs.values(first, count)
        if not torch.equal(ours.values(first, count).to(expected.dtype), expected):
            return False
    return True


def finite(tensor: Source) -> bool:
    """Whether no value is infinite or NaN."""
    if isinstance(tensor, StoredTensor):
        return _finite_bits(tensor)
    size = math.prod(tensor.shape)
    blocks = (tensor.values(first, min(VALUES, size - first)) for first in range(0, size, VALUES))
    return all(bool(torch.isfinite(block).all()) for block in blocks)


def _finite_bits(tensor: StoredTensor) -> bool:
    """Of infinities and NaN alone all bits of the exponent are set; faster than `torch.isfinite`."""
    kind, mask = EXPONENTS[tensor.dtype]
    for block in copied(tensor):
        bits = np.frombuffer(block, dtype=kind)
        if (bits & kind(mask)).max() == mask:
            return False
    return True
