"""A GGUF file holds the unified model: read back, its tensors make transformers' own classes answer the same."""

import re

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from collegium.core.errors import InputError, RunError
from collegium.unify import export_gguf as module
from collegium.unify.export import export_model
from collegium.unify.export_gguf import FILE, export_gguf
from families import CONFIGS, GROUPED, LLAMA3, tiny_inputs, tiny_seed, tiny_unified

gguf = pytest.importorskip("gguf")

TARGETS = {"llama": "mixtral", "qwen2": "qwen2-moe", "qwen3": "qwen3-moe"}
WEIGHTING = {"llama": "renormalised", "qwen2": "softmax", "qwen3": "renormalised"}
CLOSE = 1e-5


@pytest.fixture(autouse=True)
def _plain_llama(monkeypatch):
    monkeypatch.setitem(CONFIGS, "llama", LlamaConfig(**GROUPED))


def unified(family, **options):
    options = {"weighting": WEIGHTING[family], "experts_per_token": 2, **options}
    model = tiny_unified(tiny_seed(family), noise=0.1, context="token", decide="every-layer", **options)
    for router in model.routers.values():
        router.centre.data.zero_()
    return model.requires_grad_(False)


def written(model, folder):
    model.save_pretrained(folder / "unified")
    return export_gguf(folder / "unified", folder / "gguf")


def values(path):
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items()}


def difference(ours, theirs):
    return (ours - theirs).abs().max() / ours.abs().max()


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_transformers_reads_the_file_as_the_same_model(family, tmp_path):
    model = unified(family)
    artifact = written(model, tmp_path)
    export_model(tmp_path / "unified", TARGETS[family], tmp_path / "exported")
    config = AutoConfig.from_pretrained(tmp_path / "exported")  # it reads no experts' inner size from the file
    target = AutoModelForCausalLM.from_pretrained(artifact.path, gguf_file=FILE, config=config, dtype=torch.float32)
    inputs = tiny_inputs(family, [12, 12])
    assert difference(model(**inputs).logits, target(**inputs).logits) < CLOSE


def test_the_llama_graph_holds_mixtral_with_turned_heads(tmp_path):
    """transformers reads no Mixtral from GGUF, so the tensors are put back by hand, the heads as llama.cpp has them."""
    model = unified("llama", experts_per_token=1)
    artifact = written(model, tmp_path)
    export_model(tmp_path / "unified", "mixtral", tmp_path / "exported")
    target = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").requires_grad_(False)
    found = {one.name: torch.from_numpy(one.data.copy()) for one in gguf.GGUFReader(artifact.path / FILE).tensors}
    layer = {
        "self_attn.v_proj.weight": "attn_v",
        "self_attn.o_proj.weight": "attn_output",
        "input_layernorm.weight": "attn_norm",
        "post_attention_layernorm.weight": "ffn_norm",
        "mlp.gate.weight": "ffn_gate_inp",
        "mlp.experts.down_proj": "ffn_down_exps",
    }
    state = {
        "model.embed_tokens.weight": found.pop("token_embd.weight"),
        "model.norm.weight": found.pop("output_norm.weight"),
        "lm_head.weight": found.pop("output.weight"),
    }
    for index in range(3):
        block, prefix = f"blk.{index}", f"model.layers.{index}"
        for ours, theirs in layer.items():
            state[f"{prefix}.{ours}"] = found.pop(f"{block}.{theirs}.weight")
        both = [found.pop(f"{block}.ffn_{half}_exps.weight") for half in ("gate", "up")]
        state[f"{prefix}.mlp.experts.gate_up_proj"] = torch.cat(both, dim=1)
        for name, heads in (("q", 4), ("k", 2)):
            turned = found.pop(f"{block}.attn_{name}.weight")
            straight = turned.reshape(heads, -1, 2, 32).swapaxes(1, 2).reshape(turned.shape)
            assert not torch.equal(turned, straight)
            state[f"{prefix}.self_attn.{name}_proj.weight"] = straight
    assert not found
    for parameter in target.parameters():
        parameter.zero_()
    target.load_state_dict(state)
    inputs = tiny_inputs("llama", [12, 12])
    assert difference(model(**inputs).logits, target(**inputs).logits) < CLOSE


def test_the_file_says_what_llama_cpp_asks_for_and_who_the_experts_are(tmp_path):
    artifact = written(unified("qwen2", fallback=True), tmp_path)
    said = values(artifact.path / FILE)
    assert said["general.architecture"] == "qwen2moe"
    assert said["qwen2moe.expert_count"] == 4
    assert said["qwen2moe.expert_used_count"] == 2
    assert said["qwen2moe.expert_feed_forward_length"] == said["qwen2moe.expert_shared_feed_forward_length"] == 48
    assert said["collegium.expert_names"] == ["owner-0", "owner-1", "owner-2", "seed"]
    assert "| 3 | seed |" in (artifact.path / "README.md").read_text()


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "F16"), (torch.bfloat16, "BF16")])
def test_matrices_keep_their_dtype_vectors_and_routers_are_float32(dtype, name, tmp_path):
    model = unified("qwen3").to(dtype)
    for router in model.routers.values():
        router.float()
    artifact = written(model, tmp_path)
    kinds = {one.name: one.tensor_type.name for one in gguf.GGUFReader(artifact.path / FILE).tensors}
    precise = re.compile(r".*(norm|ffn_gate_inp)\.weight")
    assert all(kind == ("F32" if precise.fullmatch(one) else name) for one, kind in kinds.items())


def test_the_same_model_gives_the_same_bytes(tmp_path):
    model = unified("llama")
    first = written(model, tmp_path)
    again = export_gguf(tmp_path / "unified", tmp_path / "again")
    assert again.sha256 == first.sha256


def test_a_file_that_reads_back_otherwise_is_not_kept(tmp_path, monkeypatch):
    def damaged(path, *arguments):
        write(path, *arguments)
        content = bytearray(path.read_bytes())
        content[-64] ^= 1
        path.write_bytes(content)

    write = module._write
    monkeypatch.setattr(module, "_write", damaged)
    with pytest.raises(RunError, match="not written as planned"):
        written(unified("llama"), tmp_path)
    assert not (tmp_path / "gguf").exists()


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("llama", {"weighting": "softmax"}, "llama.cpp's llama divides"),
        ("qwen2", {"weighting": "renormalised"}, "takes them as `softmax` gives them"),
        ("qwen2", {"weighting": "straight-through", "experts_per_token": 1}, "takes them as `softmax` gives them"),
        ("qwen3", {"weighting": "softmax"}, "llama.cpp's qwen3moe divides"),
    ],
)
def test_a_graph_that_weighs_otherwise_is_refused(family, options, words, tmp_path):
    with pytest.raises(InputError, match=re.escape(words)):
        written(unified(family, **options), tmp_path)
    assert not (tmp_path / "gguf").exists()


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("llama", {"rope_parameters": LLAMA3}, "only unscaled positions"),
        ("llama", {"hidden_act": "gelu"}, "uses silu"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}, "a sliding window"),
        ("qwen3", {"attention_bias": True}, "attention_bias = True"),
    ],
)
def test_a_seed_that_the_graph_runs_otherwise_is_refused(family, change, words, tmp_path, monkeypatch):
    head = {"head_dim": 8} if family == "qwen3" else {}
    monkeypatch.setitem(CONFIGS, family, type(CONFIGS[family])(**GROUPED, **head, **change))
    with pytest.raises(InputError, match=words):
        written(unified(family), tmp_path)


def test_a_family_without_a_graph_is_refused(tmp_path):
    model = tiny_unified(tiny_seed("olmo2"), context="token", decide="every-layer")
    with pytest.raises(InputError, match="gguf takes llama, mistral, qwen2, qwen3"):
        written(model, tmp_path)
