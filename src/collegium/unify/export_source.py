"""A unified decoder on disk, opened for export: its configuration, its routers, and its tensors one at a time.

The folder is one that `save_pretrained` of a unified class wrote, with the manifest of the artifact or without one, or
one that `merge` wrote. No code of the folder runs: the configuration is read by this package's class for its
`model_type`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from collegium.core.artifacts import MANIFEST, canonical_json, read_artifact, sha256_of
from collegium.core.errors import ArtifactError
from collegium.moe.modeling import UNIFIED_CLASSES
from collegium.unify.export_targets import RouterValues, finite
from collegium.unify.low_rank_files import WholeExperts
from collegium.unify.merge_checkpoints import KIND as MERGED
from collegium.unify.tensor_files import TensorFiles
from collegium.unify.unified_folder import KIND as UNIFIED

CONFIG = "config.json"


@dataclass(frozen=True)
class ExportSource:
    """What is exported.

    Attributes:
        sha256: of the artifact; of configuration and weights where the folder has no manifest.
        routers: of the layers that have one, from below.
        expert_names: owners in the order of the experts; a fallback, the last, is `seed`.
    """

    path: Path
    sha256: str
    config: Any
    tensors: TensorFiles
    routers: Sequence[RouterValues]

    @property
    def expert_names(self) -> list[str]:
        return [*(self.config.expert_names or []), *(["seed"] if self.config.fallback else [])]

    @property
    def experts_per_token(self) -> int:
        return min(self.config.experts_per_token, len(self.expert_names))

    def expert(self, layer: int, index: int, matrix: str) -> str:
        """Name of an expert's matrix."""
        return f"model.layers.{layer}.mlp.experts.{index}.{matrix}.weight"

    @property
    def unrouted(self) -> list[str]:
        """Names of the tensors that are neither of an expert nor of a router; a tied head is the embedding."""
        tied = {"lm_head.weight"} if self.config.tie_word_embeddings else set()
        own = [name for name in self.tensors.names if ".mlp.experts." not in name and ".mlp.router." not in name]
        return [name for name in own if name not in tied]


def open_source(path: Path) -> ExportSource:
    """Open a unified model for export; with a manifest, every file is checked against it.

    Raises:
        ArtifactError: no unified model, an encoder's or vision model's folder, a damaged one.
    """
    config = _config(path)
    if not any(name.endswith("ForCausalLM") for name in config.architectures or []):
        raise ArtifactError(
            f"{path} has no language-model head; only decoders with one can be exported.",
            got=", ".join(config.architectures or []) or "no architecture",
            expected="a unified …ForCausalLM",
        )
    sha256 = _sealed(path) if (path / MANIFEST).exists() else None
    tensors = _tensors(path, config)
    if sha256 is None:
        sha256 = sha256_of(canonical_json({name: sha256_of(path / name) for name in [CONFIG, *tensors.files]}))
    layers = [layer for layer in range(config.num_hidden_layers) if _router(layer, "weight") in tensors.names]
    routers = [_read_router(tensors, layer, config) for layer in layers]
    if not all(finite(router) for router in routers):
        raise ArtifactError(f"{path} has a router whose values are not finite, or a temperature that is not above 0.")
    return ExportSource(path, sha256, config, tensors, routers)


def _config(path: Path) -> Any:
    known = {config_class.model_type: config_class for config_class, _ in UNIFIED_CLASSES.values()}
    try:
        values = json.loads((path / CONFIG).read_bytes())
        config_class = known.get(values.get("model_type"))
        if config_class is not None:
            config = config_class.from_dict(values)
            if config.seed_model_type == config_class.seed_model_type:
                return config
        got = f"model_type {values.get('model_type')}, seed_model_type {values.get('seed_model_type')}"
    except (OSError, ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        got = str(error).splitlines()[0]
    raise ArtifactError(
        f"{path} is no unified model.", got=got, expected="a folder written by `collegium unify` or `merge`"
    )


def _tensors(path: Path, config: Any) -> TensorFiles:
    """The tensors with every expert as whole matrices, whatever it is kept as."""
    if config.expert_ranks is None:
        return TensorFiles(path)
    return WholeExperts(path, [*config.expert_ranks, *([0] if config.keeps_seed_ffn else [])])


def _sealed(path: Path) -> str:
    """The sha256 of an artifact that `unify` or `merge` wrote."""
    artifact = read_artifact(path)
    if artifact.kind not in (UNIFIED, MERGED):
        raise ArtifactError(
            f"{path} is another kind of artifact.", got=artifact.kind, expected=f"{UNIFIED} or {MERGED}"
        )
    return artifact.sha256


def _router(layer: int, value: str) -> str:
    return f"model.layers.{layer}.mlp.router.{value}"


def _read_router(tensors: TensorFiles, layer: int, config: Any) -> RouterValues:
    experts, dim = len(config.expert_names or []) + config.fallback, config.hidden_size
    shapes = {"weight": (experts, dim), "bias": (experts,), "centre": (dim,), "context_weight": (), "temperature": ()}
    for value, expected in shapes.items():
        got = tensors.shape(_router(layer, value))
        if got != expected:
            raise ArtifactError(f"{_router(layer, value)} has another shape.", got=got, expected=expected)
    return RouterValues(
        weight=tensors.read(_router(layer, "weight")).float(),
        bias=tensors.read(_router(layer, "bias")).float(),
        centre=tensors.read(_router(layer, "centre")).float(),
        context_weight=float(tensors.read(_router(layer, "context_weight"))),
        temperature=float(tensors.read(_router(layer, "temperature"))),
    )
