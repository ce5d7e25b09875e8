"""Collegium: experts trained on private data become one Mixture-of-Experts, without the data leaving its owner."""

# Importing registers the unified classes with transformers' Auto classes.
from collegium.moe.modeling import UNIFIED_CLASSES as _UNIFIED_CLASSES  # noqa: F401

__version__ = "0.1.0"
__all__ = ["__version__"]
