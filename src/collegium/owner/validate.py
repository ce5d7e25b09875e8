"""Reads a contribution of an owner who is not trusted: checked in full before any of it is used.

In this order, so that a hostile file costs nothing: names and links, sizes against what the charter makes possible,
hashes, headers (names, shapes, dtypes), then values (finite, routing vectors no longer than any text could make
them), then the proxies (distinct, from the pool, no more than agreed).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open
from torch import Tensor

from collegium.core.artifacts import MANIFEST, Artifact, read_artifact
from collegium.core.errors import ArtifactError, InvalidContribution
from collegium.models.ffn_inputs import norm_bound
from collegium.models.seed_model import SeedModel
from collegium.moe.architectures import ffn_parameter_names
from collegium.owner.charter import Charter
from collegium.owner.contribution import CARD, EXPERT, HEAD, LEDGER, PROXIES, ROUTING
from collegium.owner.head import UNIT
from collegium.selection.pool import Pool

FILES = {EXPERT, ROUTING, PROXIES, LEDGER, CARD}
LARGEST_TEXT = 1 << 20  # bytes of proxies, ledger and card
HEADER = 1 << 20  # bytes allowed for a safetensors header


@dataclass(frozen=True)
class Contribution:
    """A checked contribution.

    Attributes:
        expert: neutral name → tensor, LoRA factors not merged.
        routing: layer → routing vector; [dim].
        head: rows of the owner's classes, of length 1; None = the task has no head.
        proxy_rows: rows of the pool, ascending.
        ledger: the entries as the owner wrote them.
    """

    artifact: Artifact
    owner: str
    expert: dict[str, Tensor]
    routing: dict[int, Float32[np.ndarray, " dim"]]
    proxy_rows: list[int]
    ledger: list[dict]
    head: Float32[Tensor, "classes dim"] | None


def read_contribution(path: Path, charter: Charter, pool: Pool, seed: SeedModel) -> Contribution:
    """Read and check a contribution.

    Raises:
        InvalidContribution: any fault, with the file or tensor.
    """
    owner, artifact = _open(path, charter)
    expert_shapes = expected_expert(charter, seed)
    routing_shapes = {f"layers.{layer}": (seed.dim,) for layer in charter.routed_layers(seed.num_layers)}
    _check_size(path, EXPERT, expert_shapes)
    head_shapes = expected_head(charter, owner, seed)
    _check_size(path, ROUTING, routing_shapes)
    if head_shapes:
        _check_size(path, HEAD, head_shapes)
    try:
        artifact = read_artifact(path, "contribution")  # now that sizes are known, the hashes
    except ArtifactError as error:
        raise InvalidContribution(f"The contribution {path} is damaged.", got=str(error)) from None
    expert = _tensors(path / EXPERT, expert_shapes, owner)
    _check_products(expert, owner)
    routing = {
        int(name.split(".")[1]): tensor.numpy()
        for name, tensor in _tensors(path / ROUTING, routing_shapes, owner).items()
    }
    _check_length(routing, seed, owner)
    head = _tensors(path / HEAD, head_shapes, owner)["rows"] if head_shapes else None
    if head is not None:
        _check_rows(head, owner)
    return Contribution(
        artifact=artifact,
        owner=owner,
        expert=expert,
        routing=routing,
        proxy_rows=_proxies(path, charter, pool, owner),
        ledger=_ledger(path),
        head=head,
    )


def expected_expert(charter: Charter, seed: SeedModel) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an expert's tensors under this charter."""
    training = charter.terms.training
    shapes: dict[str, tuple[int, ...]] = {}
    parameters = dict(seed.model.named_parameters())
    for layer in charter.trained_layers(seed.num_layers):
        for neutral, own in ffn_parameter_names(seed.architecture, seed.model, layer).items():
            shape = tuple(parameters[own].shape)
            if training.parameters == "full":
                shapes[neutral] = shape
            elif neutral.endswith(".weight"):
                matrix = neutral.removesuffix(".weight")
                shapes[f"{matrix}.lora_A"] = (training.rank, shape[1])
                shapes[f"{matrix}.lora_B"] = (shape[0], training.rank)
    return shapes


def expected_head(charter: Charter, owner: str, seed: SeedModel) -> dict[str, tuple[int, ...]]:
    """Name and shape of the owner's rows of the head; empty where the task has no head."""
    if charter.terms.task != "label-head":
        return {}
    return {"rows": (len(charter.terms.owners[owner].labels or []), seed.embedding_dim)}


def _open(path: Path, charter: Charter) -> tuple[str, Artifact]:
    if path.is_symlink() or not path.is_dir():
        raise InvalidContribution(f"{path} is no contribution.", got="no folder", expected="a folder")
    files = FILES | ({HEAD} if charter.terms.task == "label-head" else set())
    for entry in path.rglob("*"):
        name = entry.relative_to(path).as_posix()
        if entry.is_symlink():
            raise InvalidContribution(f"The contribution {path} holds a link.", got=name, expected="plain files only")
        if name not in files | {MANIFEST}:
            raise InvalidContribution(
                f"The contribution {path} holds a file that does not belong there.",
                got=name,
                expected=", ".join(sorted(files)),
                do="refuse it; pickles and other files may run code",
            )
        if name in (PROXIES, LEDGER, CARD) and entry.stat().st_size > LARGEST_TEXT:
            raise InvalidContribution(
                f"{name} in {path} is too large.", got=entry.stat().st_size, expected=LARGEST_TEXT
            )
    try:
        artifact = read_artifact(path, "contribution", verify=False)
    except ArtifactError as error:
        raise InvalidContribution(f"{path} is no contribution.", got=str(error)) from None
    if set(artifact.files) != files:
        raise InvalidContribution(f"{path} does not hold what a contribution holds.", got=sorted(artifact.files))
    if artifact.inputs.get("charter") != charter.sha256:
        raise InvalidContribution(
            f"The contribution {path} was made under another charter.",
            got=artifact.inputs.get("charter"),
            expected=charter.sha256,
            do="ask the owner to contribute again under this charter",
        )
    agreed = {"pool": charter.terms.pool, "seed_model": charter.terms.seed_model}
    if any(artifact.inputs.get(name) != value for name, value in agreed.items()):
        raise InvalidContribution(
            f"The contribution {path} was made with another pool or seed model than the charter's.",
            got=artifact.inputs,
            expected=agreed,
        )
    owner = artifact.settings.get("owner")
    if not isinstance(owner, str) or owner not in charter.terms.owners:
        raise InvalidContribution(
            f"The contribution {path} is of an owner whom the charter does not name.",
            got=repr(owner),
            expected=", ".join(charter.owners),
        )
    return owner, artifact


def _check_size(path: Path, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    values = sum(4 * int(np.prod(shape)) for shape in shapes.values())
    size = (path / name).stat().st_size
    if not values < size <= values + HEADER:
        raise InvalidContribution(
            f"{name} in {path} has a size that the charter does not allow.",
            got=f"{size} bytes",
            expected=f"{values} bytes of float32 values and a header of at most {HEADER}",
        )


def _tensors(file: Path, shapes: Mapping[str, tuple[int, ...]], owner: str) -> dict[str, Tensor]:
    tensors = {}
    try:
        with safe_open(file, framework="pt") as opened:
            names = set(opened.keys())
            if names != set(shapes):
                raise InvalidContribution(
                    f"{owner}'s {file.name} does not hold the tensors that the charter asks for.",
                    got=f"missing {sorted(set(shapes) - names)[:3]}, unknown {sorted(names - set(shapes))[:3]}",
                    do="train again with the charter's settings",
                )
            for name, shape in shapes.items():
                view = opened.get_slice(name)
                if tuple(view.get_shape()) != shape or view.get_dtype() != "F32":
                    raise InvalidContribution(
                        f"{owner}'s {name} does not fit the seed model.",
                        got=f"{view.get_dtype()} {tuple(view.get_shape())}",
                        expected=f"F32 {shape}",
                        do="experts must start from the charter's seed model",
                    )
                tensors[name] = opened.get_tensor(name)
    except SafetensorError as error:
        raise InvalidContribution(f"{owner}'s {file.name} is no valid safetensors file.", got=str(error)) from None
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise InvalidContribution(f"{owner}'s {name} holds infinite values or NaN.", do="refuse it; train again")
    return tensors


def _check_products(expert: Mapping[str, Tensor], owner: str) -> None:
    """Finite LoRA factors whose product is not would make a model of NaN."""
    for name, factor in expert.items():
        matrix = name.removesuffix(".lora_A")
        # times 2¹⁶: room for lora_alpha / rank and the seed's own weight
        if matrix != name and not torch.isfinite(2.0**16 * (expert[f"{matrix}.lora_B"] @ factor)).all():
            raise InvalidContribution(f"{owner}'s LoRA factors of {matrix} give infinite weights.", do="train again")


def _check_length(routing: Mapping[int, Float32[np.ndarray, " dim"]], seed: SeedModel, owner: str) -> None:
    for layer, vector in routing.items():
        bound = norm_bound(seed, seed.architecture, layer)
        length = float(np.linalg.norm(vector.astype(np.float64)))
        if length > bound * 1.001:
            raise InvalidContribution(
                f"{owner}'s routing vector of layer {layer} is longer than any text could make it.",
                got=f"{length:.4g}",
                expected=f"at most {bound:.4g}",
                do="refuse it: an inflated vector would capture the other owners' traffic",
            )


def _check_rows(head: Float32[Tensor, "classes dim"], owner: str) -> None:
    lengths = head.double().norm(dim=1)
    wrong = [row for row, length in enumerate(lengths.tolist()) if abs(length - 1.0) > UNIT]
    if wrong:
        raise InvalidContribution(
            f"{owner}'s row {wrong[0]} of the head is not of length 1.",
            got=f"{float(lengths[wrong[0]]):.4g}",
            expected="1",
            do="refuse it: a longer row would win the other owners' items",
        )


def _json(file: Path) -> object:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise InvalidContribution(f"{file} is no valid JSON.") from None


def _proxies(path: Path, charter: Charter, pool: Pool, owner: str) -> list[int]:
    hashes = _json(path / PROXIES)
    if not isinstance(hashes, list) or not all(isinstance(value, str) for value in hashes):
        raise InvalidContribution(f"{owner}'s {PROXIES} is no list of content hashes.")
    if not 1 <= len(hashes) <= charter.terms.selection.size or hashes != sorted(set(hashes)):
        raise InvalidContribution(
            f"{owner}'s {PROXIES} does not hold what was agreed.",
            got=f"{len(hashes)} hashes, {len(set(hashes))} distinct",
            expected=f"1 to {charter.terms.selection.size} distinct hashes in sorted order",
        )
    try:
        return sorted(pool.rows_of(hashes))
    except KeyError as error:
        raise InvalidContribution(f"{owner}'s proxy {str(error)[:40]} is not in the pool.") from None


def _ledger(path: Path) -> list[dict]:
    entries = _json(path / LEDGER)
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values()) for entry in entries
    ):
        raise InvalidContribution(f"{LEDGER} in {path} is malformed.", expected="a list of releases")
    return entries
