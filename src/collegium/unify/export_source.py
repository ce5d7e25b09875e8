"""A unified decoder on disk, opened for export: its configuration, its routers, and its tensors one at a time.

The folder is one that `save_pretrained` of a unified class wrote, with the manifest of the artifact or without one, or
one that `merge` wrote. No code of the folder runs: the configuration is read by this package's class for its
`model_type`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from collegium.core.artifacts import MANIFEST, Artifact, canonical_json, read_artifact, sha256_of
from collegium.core.errors import ArtifactError
from collegium.moe.modeling import UNIFIED_CLASSES
from collegium.unify.byte_merge import Output
from collegium.unify.checkpoint import CONFIG, Source, StoredTensor, read_checkpoint, whole
from collegium.unify.export_targets import RouterValues, finite
from collegium.unify.low_rank_files import whole_experts
from collegium.unify.merge_checkpoints import KIND as MERGED
from collegium.unify.unified_folder import FACTS
from collegium.unify.unified_folder import KIND as UNIFIED

CONTRIBUTION = "contribution:"  # before an owner's name, among the inputs of a unified model
COPIED_DTYPES = ("F32", "F16", "BF16")  # that all targets' files can hold


@dataclass(frozen=True)
class ExportSource:
    """What is exported.

    Attributes:
        sha256: of the artifact; of configuration and weights where the folder has no manifest.
        routers: of the layers that have one, from below.
        values: of the tensors that are not copied: experts that are kept as low-rank factors.
        dense_layers: so many layers from below hold the seed's FFN alone, and every expert is that one.
        expert_names: owners in the order of the experts; the seed's own FFN, where it can be chosen, is `seed`.
        project: that `unify` made it in; "" where the folder does not tell.
        contributions: owner → sha256, where `unify` or `owners add` made the folder.
    """

    path: Path
    sha256: str
    config: Any
    tensors: Mapping[str, StoredTensor]
    routers: Sequence[RouterValues]
    dense_layers: int = 0
    values: Mapping[str, Source] = field(default_factory=dict)
    project: str = ""
    contributions: Mapping[str, str] = field(default_factory=dict)

    @property
    def expert_names(self) -> list[str]:
        return self.config.choices

    @property
    def experts_per_token(self) -> int:
        return min(self.config.experts_per_token, len(self.expert_names))

    def expert(self, layer: int, index: int, matrix: str) -> str:
        """Name of an expert's matrix."""
        if layer < self.dense_layers:
            return f"model.layers.{layer}.mlp.{matrix}.weight"
        return f"model.layers.{layer}.mlp.experts.{index}.{matrix}.weight"

    def stored(self, name: str) -> StoredTensor:
        """Where a tensor lies.

        Raises:
            ArtifactError: the folder lacks it.
        """
        return _stored(self.path, self.tensors, name)

    def copied(self, name: str, new_name: str) -> Output:
        """The same tensor under a new name."""
        tensor = self.stored(name)
        return Output(new_name, tensor.dtype, self.values.get(name, tensor))

    @property
    def unrouted(self) -> list[str]:
        """Names of the tensors that are neither of an expert nor of a router; a tied head is the embedding."""
        tied = {"lm_head.weight"} if self.config.tie_word_embeddings else set()
        dense = tuple(f"model.layers.{layer}.mlp." for layer in range(self.dense_layers))
        own = [name for name in sorted(self.tensors) if ".mlp.experts." not in name and ".mlp.router." not in name]
        return [name for name in own if name not in tied and not name.startswith(dense)]


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
    sealed = _sealed(path) if (path / MANIFEST).exists() else None
    tensors = _tensors(path)
    if sealed is not None:
        sha256 = sealed.sha256
    else:
        files = sorted({tensor.file.name for tensor in tensors.values()})
        sha256 = sha256_of(canonical_json({name: sha256_of(path / name) for name in [CONFIG, *files]}))
    layers = [layer for layer in range(config.num_hidden_layers) if _router(layer, "weight") in tensors]
    routers = [_read_router(path, tensors, layer, config) for layer in layers]
    if not all(finite(router) for router in routers):
        raise ArtifactError(f"{path} has a router whose values are not finite, or a temperature that is not above 0.")
    source = ExportSource(path, sha256, config, tensors, routers)
    if sealed is not None and FACTS in sealed.files:
        made_of = {key.partition(":")[2]: value for key, value in sealed.inputs.items() if key.startswith(CONTRIBUTION)}
        source = replace(source, project=json.loads((path / FACTS).read_bytes())["project"], contributions=made_of)
    if config.expert_ranks is None:
        return source
    tensors, values = whole_experts(tensors, [*config.expert_ranks, *([0] if config.keeps_seed_ffn else [])])
    return replace(source, tensors=tensors, values=values)


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


def _sealed(path: Path) -> Artifact:
    """The artifact that `unify` or `merge` wrote."""
    artifact = read_artifact(path)
    if artifact.kind not in (UNIFIED, MERGED):
        raise ArtifactError(
            f"{path} is another kind of artifact.", got=artifact.kind, expected=f"{UNIFIED} or {MERGED}"
        )
    return artifact


def _tensors(path: Path) -> dict[str, StoredTensor]:
    checkpoint = read_checkpoint(path)
    if checkpoint.faults:
        raise ArtifactError(f"{path} has no readable weights.", got="; it ".join(checkpoint.faults))
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if isinstance(tensor, StoredTensor)}
    for name, tensor in tensors.items():
        if tensor.dtype not in COPIED_DTYPES:
            raise ArtifactError(
                f"{name} in {path} cannot be copied.", got=tensor.dtype, expected=" or ".join(COPIED_DTYPES)
            )
    return tensors


def _stored(path: Path, tensors: Mapping[str, StoredTensor], name: str) -> StoredTensor:
    if name not in tensors:
        raise ArtifactError(f"{path} is not complete: it lacks the tensor {name}.")
    return tensors[name]


def _router(layer: int, value: str) -> str:
    return f"model.layers.{layer}.mlp.router.{value}"


def _read_router(path: Path, tensors: Mapping[str, StoredTensor], layer: int, config: Any) -> RouterValues:
    experts, dim = len(config.candidates), config.hidden_size
    shapes = {"weight": (experts, dim), "bias": (experts,), "centre": (dim,), "context_weight": (), "temperature": ()}
    found = {value: _stored(path, tensors, _router(layer, value)) for value in shapes}
    for value, expected in shapes.items():
        if found[value].shape != expected:
            got = found[value].shape
            raise ArtifactError(f"{_router(layer, value)} has another shape.", got=got, expected=expected)
    values = {value: whole(tensor).float() for value, tensor in found.items()}
    return RouterValues(
        weight=values["weight"],
        bias=values["bias"],
        centre=values["centre"],
        context_weight=float(values["context_weight"]),
        temperature=float(values["temperature"]),
    )
