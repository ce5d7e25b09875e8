"""Exports a unified decoder to an architecture that others already serve, exactly, or says why that is impossible.

The new folder holds a configuration of the target's own class, its weights in the layout that was published for it (one
tensor for each expert and matrix), the tokenizer, and a card. Tensors are copied as bytes (`byte_merge`); routers stay
float32. Loaded in float32 by transformers the export computes what the unified model computes. A program that
rounds the router's rows to bfloat16, as most do, may send a token whose two best scores are nearly equal elsewhere.
"""

import dataclasses
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from collegium.core.artifacts import Artifact, canonical_json, read_artifact, writing
from collegium.core.errors import ArtifactError, InputError
from collegium.core.progress import say
from collegium.moe.configuration import MoEConfig
from collegium.moe.modeling import NOT_THE_SEEDS
from collegium.selection.pool import Pool
from collegium.unify.byte_merge import Constant, Output, write_outputs
from collegium.unify.checkpoint import FLOATS
from collegium.unify.drop_context import Agreement, dropping_obstacles, retuned, without_context
from collegium.unify.export_source import ExportSource, open_source
from collegium.unify.export_targets import (
    SHARED_EXPERT,
    SHARED_GATE,
    TARGETS,
    WIDEST_SHARED,
    Target,
    obstacles,
)

KIND = "exported-model"
COPIED = (  # tokenizer, generation defaults, licence, what each owner released
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template.*",
    "generation_config.json",
    "LICENSE*",
    "ledger.json",
)
CARD, AGREEMENT = "README.md", "agreement.json"
IN_FLOAT32 = (
    "In float32 it computes what that model computes. The routers' rows are float32 in the file; a program that "
    "rounds them (bfloat16) may send a token with two nearly equal scores to another expert."
)


def export_model(model: Path, to: str, out: Path, drop_context: Pool | None = None) -> Artifact:
    """Write the unified model at `model` as the architecture `to` (a key of `TARGETS`).

    Args:
        drop_context: public texts on which routers without context are tuned, where the model's own do not fit.

    Raises:
        ArtifactError: `model` is no unified decoder.
        InputError: the target cannot express it; everything that stands in the way is listed.
    """
    source = open_source(model)
    fitting = fit(source, to, lambda one: obstacles(to, one.config, one.routers), drop_context)
    target = TARGETS[to]
    plan = planned_outputs(fitting.source, target)
    with writing(out, KIND, fitting.inputs, {"to": to}) as folder:
        target_config(fitting.source, target).save_pretrained(folder)
        write_outputs(folder, plan)
        write_companions(fitting, folder, to, target.model_class, IN_FLOAT32)
    return read_artifact(out, KIND)


@dataclass(frozen=True)
class Fitting:
    """A model that a target can express.

    Attributes:
        inputs: what it is made of, by hash.
        agreement: with the model that was asked for, where it is not the same.
    """

    source: ExportSource
    inputs: dict[str, str]
    agreement: Agreement | None = None


def fit(
    source: ExportSource, to: str, obstacles_of: Callable[[ExportSource], list[str]], drop_context: Pool | None
) -> Fitting:
    """The model itself where the target can express it; otherwise, if that is wanted, the one without context.

    Raises:
        InputError: lists what the target cannot express.
    """
    found = obstacles_of(source)
    if not found:
        if drop_context is not None:
            say(f"{to} can express the model as it is: nothing is dropped, no router is tuned")
        return Fitting(source, {"model": source.sha256})
    bare = without_context(source)
    left = obstacles_of(bare) + dropping_obstacles(bare)
    if left or drop_context is None:
        way_out = "" if left else ", or give up what stands in the way and tune the routers: --drop-context --pool POOL"
        raise InputError(
            f"{source.path} cannot be exported to {to}: the target would be another model.",
            got="".join(f"\n    - {one}" for one in (found if drop_context is None else left)),
            do="serve the folder as it is (transformers, trust_remote_code=True), or unify again as the lines say"
            + way_out,
        )
    tuned, agreement = retuned(source, drop_context)
    return Fitting(tuned, {"model": source.sha256, "pool": drop_context.artifact.sha256}, agreement)


def target_config(source: ExportSource, target: Target) -> Any:
    """The target's configuration: the seed's fields, and those that count the experts."""
    config = source.config
    ours = {field.name for field in dataclasses.fields(MoEConfig)}
    own = {name: value for name, value in config.to_dict().items() if name not in {*NOT_THE_SEEDS, *ours}}
    if not target.mixes_windows:
        windows = set(own.pop("layer_types", None) or [])
        own |= {"use_sliding_window": windows == {"sliding_attention"}}
    own |= {target.num_experts: len(source.expert_names), "num_experts_per_tok": source.experts_per_token}
    if target.chooses_norm:
        own["norm_topk_prob"] = config.weighting != "softmax"
    if target.own_inner:
        own["moe_intermediate_size"] = config.intermediate_size
    if target.shared_expert:
        own["shared_expert_intermediate_size"] = shared_inner(config)
    made = target.config_class(**own, architectures=[target.model_class], expert_names=source.expert_names)
    made.dtype = config.dtype
    return made


def shared_inner(config: Any) -> int:
    """Inner size of a shared expert of zeros."""
    return min(config.intermediate_size, WIDEST_SHARED)


def planned_outputs(source: ExportSource, target: Target) -> list[Output]:
    """Every tensor of the export, in the target's names.

    Raises:
        ArtifactError: the folder lacks a tensor.
    """
    plan = [source.copied(name, name) for name in source.unrouted]
    for layer, router in enumerate(source.routers):
        prefix = f"model.layers.{layer}"
        plan.append(Output(f"{prefix}.{target.router}", "F32", Constant(router.rows)))
        for index in range(len(source.expert_names)):
            for matrix, name in target.experts.items():
                new = f"{prefix}.{name.format(expert=index)}"
                plan.append(source.copied(source.expert(layer, index, matrix), new))
        if target.shared_expert:
            plan += _zero_shared_expert(source, layer)
    expected = _parameters(target_config(source, target))
    written = sum(math.prod(output.source.shape) for output in plan)
    if written != expected:
        raise ArtifactError(
            f"{source.path} does not hold the tensors that its config.json promises.",
            got=f"{written} numbers",
            expected=f"{expected} numbers",
        )
    return plan


def write_companions(fitting: Fitting, folder: Path, to: str, becomes: str, same: str) -> None:
    """What goes with the tensors: files that stay as they are, the agreement, the card.

    Args:
        becomes: the target's class or graph.
        same: in what sense it is the same model.
    """
    for pattern in COPIED:
        for file in fitting.source.path.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
    if fitting.agreement is not None:
        (folder / AGREEMENT).write_bytes(canonical_json(fitting.agreement.as_json()))
    (folder / CARD).write_text(_card(fitting, to, becomes, same), encoding="utf-8")


def _zero_shared_expert(source: ExportSource, layer: int) -> list[Output]:
    dim, inner = source.config.hidden_size, shared_inner(source.config)
    dtype = source.stored(source.expert(layer, 0, "up_proj")).dtype
    shapes = {name: (dim, inner) if matrix == "down_proj" else (inner, dim) for matrix, name in SHARED_EXPERT.items()}
    return [
        Output(f"model.layers.{layer}.{name}", dtype, Constant(torch.zeros(shape, dtype=FLOATS[dtype])))
        for name, shape in {**shapes, SHARED_GATE: (1, dim)}.items()
    ]


def _parameters(config: Any) -> int:
    """Numbers that the target's class holds, a tied head not counted again."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _card(fitting: Fitting, to: str, becomes: str, same: str) -> str:
    source, agreement = fitting.source, fitting.agreement
    given = {name: f"`{sha256[:16]}`" for name, sha256 in source.contributions.items()}
    experts = [f"| {index} | {name} | {given.get(name, '–')} |" for index, name in enumerate(source.expert_names)]
    origin = f" of the project {source.project}" if source.project else ""
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            f"tags: [mixture-of-experts, collegium, {to}]",
            "---",
            f"# A unified model as {becomes}",
            "",
            f"Exported by Collegium from the unified model `{source.sha256[:16]}`{origin} (seed family "
            f"`{source.config.seed_model_type}`). {source.experts_per_token} of {len(source.expert_names)} experts for "
            "each token.",
            "",
            "| expert | owner | contribution |",
            "| ---: | --- | --- |",
            *experts,
            "",
            same if agreement is None else _without_context(agreement, same),
            "",
        ]
    )


def _without_context(agreement: Agreement, same: str) -> str:
    layers = list(agreement.layers.values())
    mean = sum(share.retuned for share in layers) / len(layers)
    return (
        "**It is not the same model**: this architecture has no context beside the token, so that the routers were "
        f"tuned without it, on {agreement.tuned_tokens:,} tokens of public text. On {agreement.judged_tokens:,} other "
        f"tokens the next token is the same after {agreement.next_token.retuned:.1%}, and the expert is the same for "
        f"{mean:.1%} (mean of the layers; `{AGREEMENT}` has each).\n\nOf the model with these routers: {same}"
    )
