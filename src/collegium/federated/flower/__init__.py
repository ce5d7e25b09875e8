"""Flower as the engine of the rounds: the only package that imports `flwr`.

Pinned to one minor version, since Flower's interfaces change often. It tells nobody that it runs: Flower reads these
variables when it is imported, Ray when it starts.
"""

import os

for name, value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    os.environ.setdefault(name, value)
