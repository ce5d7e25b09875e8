"""Exports a unified decoder to a GGUF file for llama.cpp and the programs built on it; what was written is read back.

What the readers of a file do with it was read in llama.cpp's graphs (`src/models/`), since the file cannot say it:

    llama      Mixtral: chosen weights divided by their sum; queries and keys in pairs of neighbouring rows (RoPE)
    qwen2moe   chosen weights as the softmax over all experts gives them; a shared expert, here of zeros
    qwen3moe   chosen weights divided by their sum

So a model whose `router.weighting` does the other thing is refused, as are sliding windows and scaled positions, which
these graphs ignore or keep in other fields. Matrices keep their dtype (F32, F16, BF16); vectors and routers are F32, as
llama.cpp wants them. The file has no vocabulary; the tokenizer's files lie beside it. FlexOlmo has no graph. After
writing, every tensor is read again and compared byte for byte.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from collegium.core.artifacts import Artifact, read_artifact, writing
from collegium.core.errors import InputError, RunError
from collegium.selection.pool import Pool
from collegium.unify.byte_merge import Output
from collegium.unify.checkpoint import FLOATS, whole
from collegium.unify.export import KIND, fit, planned_outputs, shared_inner, write_companions
from collegium.unify.export_source import ExportSource, open_source
from collegium.unify.export_targets import TARGETS, Target, obstacles, target_for

GRAPHS = {"mixtral": "llama", "qwen2-moe": "qwen2moe", "qwen3-moe": "qwen3moe"}  # target → llama.cpp's graph
LEAVES_WEIGHTS = ("qwen2moe",)  # does not divide the chosen weights by their sum
FILE = "model.gguf"
VERIFIED = (
    "Every tensor was read back from the file and compared with the model's, byte for byte. The file holds no "
    "vocabulary: it takes and gives token numbers of the tokenizer beside it."
)


def export_gguf(model: Path, out: Path, drop_context: Pool | None = None) -> Artifact:
    """Write the unified model at `model` as `model.gguf`.

    Args:
        drop_context: public texts on which routers without context are tuned, where the model's own do not fit.

    Raises:
        ArtifactError: `model` is no unified decoder.
        InputError: the `gguf` package is missing, or llama.cpp's graph of the family is another model.
        RunError: what was read back differs from what was written.
    """
    _gguf()
    source = open_source(model)
    name = target_for(source.config.seed_model_type)
    if name not in GRAPHS:
        families = sorted(seed for target in GRAPHS for seed in TARGETS[target].seeds)
        foreign = f"the seed is a {source.config.seed_model_type}; gguf takes {', '.join(families)}"
        fit(source, "gguf", lambda _: [foreign], None)
    assert name is not None
    target, graph = TARGETS[name], GRAPHS[name]

    def obstacles_of(one: ExportSource) -> list[str]:
        return obstacles(name, one.config, one.routers) + _gguf_obstacles(one.config, graph)

    fitting = fit(source, "gguf", obstacles_of, drop_context)
    plan = _gguf_plan(fitting.source, target, graph)
    with writing(out, KIND, fitting.inputs, {"to": "gguf"}) as folder:
        _write(folder / FILE, fitting.source, graph, plan)
        _verify(folder / FILE, plan)
        write_companions(fitting, folder, "gguf", f"llama.cpp's {graph}", VERIFIED)
    return read_artifact(out, KIND)


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of the file; `read` gives its numbers in the layout of llama.cpp, as an array of the file's dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]

    def array(self) -> np.ndarray:
        """BF16, which numpy lacks, as bytes."""
        tensor = self.read().to(FLOATS[self.dtype]).contiguous()
        return (tensor.view(torch.uint8) if self.dtype == "BF16" else tensor).numpy()


def _gguf() -> Any:
    try:
        import gguf
    except ImportError:
        raise InputError("GGUF needs the package gguf.", do="pip install 'collegium[gguf]'") from None
    return gguf


def _gguf_obstacles(config: Any, graph: str) -> list[str]:
    """What llama.cpp's graph of the family does otherwise."""
    found = []
    divides = graph not in LEAVES_WEIGHTS
    if divides != (config.weighting != "softmax"):
        found.append(
            f"router.weighting = {config.weighting}: llama.cpp's {graph} "
            + ("divides the chosen weights by their sum" if divides else "takes them as `softmax` gives them")
        )
    windows = getattr(config, "layer_types", None) or [
        "full_attention" if getattr(config, "sliding_window", None) is None else "sliding_attention"
    ]
    if set(windows) != {"full_attention"}:
        found.append(f"a sliding window: llama.cpp's {graph} attends to all tokens")
    rope = config.rope_parameters
    if set(rope) != {"rope_theta", "rope_type"} or rope["rope_type"] != "default":
        found.append(f"rope_parameters = {rope}: only unscaled positions are written")
    if config.hidden_act != "silu":
        found.append(f"hidden_act = {config.hidden_act}: llama.cpp's {graph} uses silu")
    if graph == "qwen3moe" and config.attention_bias:
        found.append("attention_bias = True: llama.cpp's qwen3moe is not known to use it")
    return found


def _gguf_plan(source: ExportSource, target: Target, graph: str) -> list[GgufTensor]:
    """The target's tensors under llama.cpp's names, experts stacked."""
    names = _gguf().get_tensor_name_map(_arch(graph), source.config.num_hidden_layers)
    groups: dict[str, list[Output]] = {}
    for tensor in planned_outputs(source, target):
        parts = tensor.name.split(".")
        whole = [part for place, part in enumerate(parts) if not (part.isdigit() and parts[place - 1] == "experts")]
        groups.setdefault(".".join(whole), []).append(tensor)
    plan = []
    for name, members in groups.items():
        base, _, suffix = name.rpartition(".")
        found = names.get_name(base)
        assert found is not None, f"llama.cpp has no name for {name}"
        plan.append(_planned(f"{found}.{suffix}", members, _layout(name, source.config, graph), ".experts." in name))
    return plan


def _layout(name: str, config: Any, graph: str) -> Callable[[Tensor], Tensor]:
    if name.endswith(".shared_expert_gate.weight"):
        return _flat
    if graph == "llama" and name.endswith((".q_proj.weight", ".k_proj.weight")):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        return partial(_in_pairs, heads=heads)
    return _same


def _planned(name: str, members: list[Output], layout: Callable[[Tensor], Tensor], stacked: bool) -> GgufTensor:
    def read() -> Tensor:
        return torch.stack([whole(one.source) for one in members]) if stacked else layout(whole(members[0].source))

    own = members[0].source.shape
    shape = (len(members), *own) if stacked else own
    if layout is _flat:
        shape = shape[1:]
    is_vector = len(shape) == 1 or name.endswith("ffn_gate_inp.weight")
    return GgufTensor(name, shape, "F32" if is_vector else members[0].dtype, read)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _flat(tensor: Tensor) -> Tensor:
    return tensor.flatten()


def _in_pairs(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from halves (i, i + dim/2) to neighbours (2i, 2i + 1), as llama.cpp turns them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _arch(graph: str) -> Any:
    return next(arch for arch, name in _gguf().MODEL_ARCH_NAMES.items() if name == graph)


def _write(path: Path, source: ExportSource, graph: str, plan: list[GgufTensor]) -> None:
    gguf = _gguf()
    writer = gguf.GGUFWriter(path, graph)
    _describe(writer, source, graph)
    for tensor in plan:
        halves = tensor.dtype == "BF16"
        shape = (*tensor.shape[:-1], tensor.shape[-1] * 2) if halves else tensor.shape
        kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint8}[tensor.dtype]
        size = torch.Size(tensor.shape).numel() * FLOATS[tensor.dtype].itemsize
        raw = gguf.GGMLQuantizationType.BF16 if halves else None
        writer.add_tensor_info(tensor.name, shape, np.dtype(kind), size, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in plan:
        writer.write_tensor_data(tensor.array())
    writer.close()


def _describe(writer: Any, source: ExportSource, graph: str) -> None:
    config = source.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name(f"collegium-{source.sha256[:16]}")
    writer.add_array("collegium.expert_names", source.expert_names)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_expert_count(len(source.expert_names))
    writer.add_expert_used_count(source.experts_per_token)
    if graph != "llama":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if graph == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(shared_inner(config))
    writer.add_tokenizer_model("none")


def _verify(path: Path, plan: list[GgufTensor]) -> None:
    """Read the file again and compare.

    Raises:
        RunError: a tensor is missing, has another dtype or other bytes.
    """
    found = {tensor.name: tensor for tensor in _gguf().GGUFReader(path).tensors}
    wrong = [tensor.name for tensor in plan if not _is_same(found.get(tensor.name), tensor)]
    if wrong or len(found) != len(plan):
        raise RunError(f"{path.name} was not written as planned.", got=", ".join(wrong) or f"{len(found)} tensors")


def _is_same(found: Any, planned: GgufTensor) -> bool:
    if found is None or found.tensor_type.name != planned.dtype or tuple(found.shape[::-1]) != planned.shape:
        return False
    return np.array_equal(found.data.view(np.uint8).ravel(), planned.array().view(np.uint8).ravel())
