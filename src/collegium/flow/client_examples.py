"""A real client's own examples, prepared once.

Under Flower every message starts a new process on the client's machine. What the networks read is therefore kept in the
client's private folder, and made anew when the data or the settings change.
"""

from pathlib import Path

import numpy as np

from collegium.core.artifacts import canonical_json, finished, sha256_of, writing
from collegium.core.errors import DataError
from collegium.federated.deployed_recipe import DeployedRecipe
from collegium.federated.protocol import ClientData

KIND = "client-examples"
FEATURES, INPUTS, LABELS = "features.npy", "inputs.npy", "labels.npy"


def client_examples(recipe: DeployedRecipe, data: str, path: Path) -> ClientData:
    """All labelled examples in `data`, as the networks read them; kept as an artifact at `path`.

    Raises:
        DataError: no labels, or a label that is none of the recipe's classes.
    """
    inputs = {"data": _fingerprint(data), "settings": _settings(recipe)}
    if finished(path, KIND, inputs) is None:
        found = read_examples(recipe, data)
        with writing(path, KIND, inputs, {}) as folder:
            np.save(folder / FEATURES, found.features)
            np.save(folder / LABELS, found.labels)
            if found.inputs is not found.features:
                np.save(folder / INPUTS, found.inputs)
    features = np.load(path / FEATURES)
    own = np.load(path / INPUTS) if (path / INPUTS).is_file() else features
    return ClientData(features, own, np.load(path / LABELS))


def read_examples(recipe: DeployedRecipe, data) -> ClientData:
    """Read and embed the examples in `data`, which are of the recipe's classes.

    Raises:
        DataError: no labels, or a label that is none of the recipe's classes.
    """
    from collegium.data.examples import load_texts
    from collegium.flow.common_features import common_features, expert_inputs

    examples = load_texts(data, recipe.columns, None, recipe.random_seed)
    if examples.labels is None:
        raise DataError(f"{data} has no labels.", do="name their column in columns.label of the recipe")
    strange = sorted(set(examples.labels) - set(recipe.classes))
    if strange:
        raise DataError(
            f"{data} has labels that the recipe does not name.",
            got=", ".join(strange[:5]),
            expected=", ".join(recipe.classes),
            do="correct the labels, or agree on other classes",
        )
    labels = np.array([recipe.classes.index(label) for label in examples.labels], dtype=np.int64)
    features = common_features(recipe.common_expert, examples.texts)
    return ClientData(features, expert_inputs(recipe.inputs, examples.texts, features), labels)


def _settings(recipe: DeployedRecipe) -> str:
    used = recipe.model_dump(mode="json", include={"classes", "common_expert", "inputs", "columns"})
    return sha256_of(canonical_json(used))


def _fingerprint(data: str) -> str:
    """Hash of a file; of a folder, of names, sizes and times; of anything else, of its name. It stays here."""
    path = Path(data)
    if path.is_file():
        return sha256_of(path)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    described = [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return sha256_of(canonical_json([data, described]))
