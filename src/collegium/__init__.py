"""Collegium: experts trained on private data become one Mixture-of-Experts, without the data leaving its owner."""

from collegium.moe import (
    modeling as _modeling,
)  # registers the unified classes with transformers' Auto classes

__version__ = "0.1.0"
__all__ = ["__version__"]
