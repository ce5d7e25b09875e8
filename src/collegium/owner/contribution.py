"""A contribution: the only thing that leaves an owner. Written here, and read back in `validate.py`.

    expert.safetensors    layers.{i}.{matrix}.weight|bias, or layers.{i}.{matrix}.lora_A|lora_B
    head.safetensors      rows: the owner's rows of the head, in the order of its labels (task label-head alone)
    routing.safetensors   layers.{i}: the routing vector of a routed layer, float32
    proxies.json          content hashes of the selected pool items, sorted (the order of the picks would tell ranks)
    ledger.json           what each of these was made of and what it may tell
    card.md               the same for people

Nothing in it but values depends on the private examples: not its size, names, dtypes, times of files or metadata. With
`training.epochs` the weights tell roughly how many there were (how far AdamW moves grows with the steps); with
`training.steps` only weakly, by their share of the batches. The ledger says which.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Float64
from safetensors.torch import save_file
from torch import Tensor

from collegium.core.artifacts import Artifact, canonical_json, read_artifact, writing
from collegium.owner.charter import Charter
from collegium.privacy.ledger import Release, ledger_json

EXPERT, HEAD, ROUTING, PROXIES, LEDGER, CARD = (
    "expert.safetensors",
    "head.safetensors",
    "routing.safetensors",
    "proxies.json",
    "ledger.json",
    "card.md",
)
NO_TIME = (315_532_800, 315_532_800)  # 1980-01-01: a file's time would tell when the training ended


def write_contribution(
    path: Path,
    owner: str,
    charter: Charter,
    expert: Mapping[str, Tensor],
    routing: Mapping[int, Float64[np.ndarray, " dim"]],
    proxies: Sequence[str],
    ledger: Sequence[Release],
    head: Float32[Tensor, "classes dim"] | None = None,
) -> Artifact:
    """Write the artifact.

    Args:
        expert: neutral name → tensor.
        routing: layer → vector.
        proxies: content hashes, in any order.
        head: rows of the owner's classes; None = the task has no head.
    """
    inputs = {
        "charter": charter.sha256,
        "pool": charter.terms.pool,
        "seed_model": charter.terms.seed_model,
    }
    settings = {"owner": owner, "project": charter.terms.project}
    with writing(path, "contribution", inputs, settings, time=NO_TIME) as folder:
        save_file({name: expert[name].contiguous() for name in sorted(expert)}, folder / EXPERT)
        if head is not None:
            save_file({"rows": head.contiguous()}, folder / HEAD)
        save_file(routing_tensors(routing), folder / ROUTING)
        (folder / PROXIES).write_bytes(canonical_json(sorted(proxies)))
        (folder / LEDGER).write_bytes(ledger_json(ledger))
        (folder / CARD).write_text(_card(owner, charter, ledger), encoding="utf-8")
    return read_artifact(path, "contribution")


def safetensors_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Size of a safetensors file with these float32 tensors: 8 bytes, a JSON header padded to 8, the values."""
    header, end = {}, 0
    for name, shape in sorted(shapes.items()):
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    return 8 + -(-len(canonical_json(header)) // 8) * 8 + end


def routing_tensors(routing: Mapping[int, Float64[np.ndarray, " dim"]]) -> dict[str, Tensor]:
    """Routing vectors under their released names, in float32."""
    return {f"layers.{layer}": torch.from_numpy(vector).float() for layer, vector in sorted(routing.items())}


def _card(owner: str, charter: Charter, ledger: Sequence[Release]) -> str:
    lines = [
        f"# Contribution of {owner} to {charter.terms.project}",
        "",
        f"Made under the charter `{charter.sha256}`.",
        "",
        "| what leaves | file | made of | sensitivity | mechanism | ε | what it may tell |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {entry.what} | {entry.file or '(charter)'} | {entry.from_data} | {entry.sensitivity} | {entry.mechanism} "
        f"| {entry.epsilon} | {entry.reveals} |"
        for entry in ledger
    ]
    return "\n".join([*lines, ""])
