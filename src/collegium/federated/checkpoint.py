"""The server's state on disk after every round: written beside the last one, then renamed; one is always whole."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from collegium.core.artifacts import canonical_json, read_artifact, remove_leftovers, writing
from collegium.core.errors import ArtifactError

KIND = "federated-checkpoint"
ARRAYS, VALUES = "arrays.safetensors", "values.json"


def save_checkpoint(path: Path, identity: str, server_round: int, state: dict[str, Any]) -> None:
    """Write the state after a round; what was there before is replaced.

    Args:
        identity: hash of the settings: another run does not go on from it.
        state: `arrays`, and `values` that JSON can hold.
    """
    write_state(path, KIND, {"identity": identity}, {"server_round": server_round}, state)


def load_checkpoint(path: Path, identity: str) -> tuple[int, dict[str, Any]] | None:
    """(round, state) of the last checkpoint; None where there is none.

    Raises:
        ArtifactError: a damaged checkpoint, or one of other settings.
    """
    if path.parent.is_dir():
        remove_leftovers(path)
    if not path.exists():
        return None
    artifact = read_artifact(path, KIND)
    if artifact.inputs.get("identity") != identity:
        raise ArtifactError(
            f"The checkpoint {path} is of a run with other settings.",
            do="name another folder, or go on with the settings that it was begun with",
        )
    return int(artifact.settings["server_round"]), read_state(path)


def write_state(path: Path, kind: str, inputs: dict[str, str], settings: dict[str, Any], state: dict[str, Any]) -> None:
    """An artifact that holds a state."""
    with writing(path, kind, inputs, settings) as folder:
        save_file(dict(sorted(state["arrays"].items())), folder / ARRAYS)
        (folder / VALUES).write_bytes(canonical_json(state["values"]))


def read_state(path: Path) -> dict[str, Any]:
    """The state in an artifact.

    Raises:
        ArtifactError: files that are missing or damaged.
    """
    try:
        return {"arrays": load_file(path / ARRAYS), "values": json.loads((path / VALUES).read_bytes())}
    except (OSError, SafetensorError, ValueError) as error:
        raise ArtifactError(f"{path} is damaged.", got=str(error), do="remove it to begin anew") from None
