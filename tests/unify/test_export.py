"""An exported folder is the unified model: transformers' own classes compute the same from it, and bytes repeat."""

import json
import shutil
from functools import cache

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

import families
from collegium.core.artifacts import read_artifact
from collegium.core.router_settings import RouterSettings
from collegium.unify.byte_merge import Output, write_outputs
from collegium.unify.checkpoint import read_checkpoint
from collegium.unify.export import KIND, export_model
from collegium.unify.merge_checkpoints import merge_checkpoints
from families import CONFIGS, GROUPED, tiny_inputs, tiny_seed, tiny_unified
from finetunes import finetune, make_tiny_llama

EXPORTS = {"llama": "mixtral", "mistral": "mixtral", "qwen2": "qwen2-moe", "qwen3": "qwen3-moe", "olmo2": "flexolmo"}
CLASSES = {
    "mixtral": "MixtralForCausalLM",
    "qwen2-moe": "Qwen2MoeForCausalLM",
    "qwen3-moe": "Qwen3MoeForCausalLM",
    "flexolmo": "FlexOlmoForCausalLM",
}
WITHOUT_BIAS = LlamaConfig(**GROUPED, rope_parameters=families.LLAMA3)
CLOSE = 1e-5  # relative: the default kernels multiply by gate and up at once, and round in another order


def gate_and_up_apart(self, hidden, top_k_index, top_k_weights):
    """The experts as in transformers' plain loop, but with one product for each matrix, as in the unified model."""
    output = torch.zeros_like(hidden)
    for index in range(self.num_experts):
        token, place = torch.where(top_k_index == index)
        gate, up, down = map(torch.clone, (*self.gate_up_proj[index].chunk(2), self.down_proj[index]))
        linear, given = torch.nn.functional.linear, hidden[token]
        inner = self.act_fn(linear(given, gate)) * linear(given, up)
        output.index_add_(0, token, linear(inner, down) * top_k_weights[token, place, None].to(output.dtype))
    return output


@pytest.fixture(autouse=True)
def _our_kernel(monkeypatch):
    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS, "gate-and-up-apart", gate_and_up_apart)
    monkeypatch.setitem(CONFIGS, "llama", WITHOUT_BIAS)


@cache
def unified(family, bias=0.0, temperature=2.0, **options):
    """A unified model without a router bias; at a temperature of 2, dividing rows or logits gives the same numbers."""
    options = {"context": "token", "decide": "every-layer", "experts_per_token": 2, **options}
    model = tiny_unified(tiny_seed(family), noise=0.1, steepness=3.0, **options)
    with torch.no_grad():
        for router in model.routers.values():
            router.centre.zero_()
            router.bias.fill_(bias)
            router.temperature.fill_(temperature)
            if options["context"] != "token":
                router.context_weight.zero_()
    return model.requires_grad_(False)


@pytest.fixture
def exported(tmp_path):
    def export(model, to):
        model.save_pretrained(tmp_path / "unified")
        return export_model(tmp_path / "unified", to, tmp_path / "exported")

    return export


def load(artifact, experts="gate-and-up-apart"):
    return aligned(AutoModelForCausalLM.from_pretrained(artifact.path, experts_implementation=experts))


def aligned(model):
    """Fresh memory for every tensor: a matrix product may round differently at another address in a loaded file."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model.requires_grad_(False)


@pytest.mark.parametrize("family", EXPORTS)
@pytest.mark.parametrize(
    "options",
    [
        {"experts_per_token": 1},
        {"weighting": "renormalised"},
        {"fallback": True},
        {"context": "causal"},
        {"context": "seed"},  # the seed's FFN is there, for its own pass, but no router can pick it
    ],
    ids=str,
)
def test_logits_are_the_same_bit_for_bit(family, options, exported):
    model = unified(family, **options)
    target = load(exported(model, EXPORTS[family]))
    assert type(target).__name__ == CLASSES[EXPORTS[family]]
    inputs = tiny_inputs(family, [12, 12, 12])
    assert torch.equal(model(**inputs).logits, target(**inputs).logits)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "olmo2"])
def test_unnormalised_weights_are_the_same_where_the_target_can_leave_them(family, exported):
    model = unified(family, weighting="softmax")
    target = load(exported(model, EXPORTS[family]))
    inputs = tiny_inputs(family, [9])
    assert torch.equal(model(**inputs).logits, target(**inputs).logits)


def test_a_bias_that_is_the_same_for_all_experts_and_a_temperature_are_no_obstacle(exported):
    model = unified("qwen3", bias=0.3, temperature=0.7)
    target = load(exported(model, "qwen3-moe"))
    inputs = tiny_inputs("qwen3", [12])
    assert torch.allclose(model(**inputs).logits, target(**inputs).logits, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("family", EXPORTS)
def test_with_the_default_kernels_only_rounding_differs(family, exported):
    model = unified(family)
    target = load(exported(model, EXPORTS[family]), experts=None)
    inputs = tiny_inputs(family, [9, 5, 12], side="left")
    real = inputs["attention_mask"].bool()
    ours, theirs = model(**inputs).logits[real], target(**inputs).logits[real]
    assert (ours - theirs).abs().max() < CLOSE * ours.abs().max()
    assert ours.std() > 0.1  # the logits say something


@pytest.mark.parametrize("family", EXPORTS)
def test_greedy_text_is_the_same(family, exported):
    model = unified(family)
    target = load(exported(model, EXPORTS[family]), experts=None)
    inputs = tiny_inputs(family, [6, 4], side="left")
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(model.generate(**inputs, **options), target.generate(**inputs, **options))


def test_more_experts_for_each_token_than_there_are_means_all(exported):
    artifact = exported(unified("qwen3", num_owners=2, experts_per_token=5), "qwen3-moe")
    assert json.loads((artifact.path / "config.json").read_text())["num_experts_per_tok"] == 2


def test_a_window_in_all_layers_is_kept(exported, monkeypatch):
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    windowed = Qwen3Config(**GROUPED, head_dim=8, **window)
    monkeypatch.setitem(CONFIGS, "qwen3", windowed)
    model = tiny_unified(tiny_seed("qwen3"), context="token", decide="every-layer")
    for router in model.routers.values():
        router.centre.data.zero_()
    target = load(exported(model, "qwen3-moe"))
    inputs = tiny_inputs("qwen3", [12])
    assert target.config.sliding_window == 4
    assert torch.equal(model(**inputs).logits, target(**inputs).logits)


def test_weights_keep_their_dtype_and_routers_stay_float32(exported):
    model = tiny_unified(tiny_seed("llama"), noise=0.1, context="token", decide="every-layer").to(torch.bfloat16)
    for router in model.routers.values():
        router.float()
        router.centre.data.zero_()
    artifact = exported(model, "mixtral")
    dtypes = {name: tensor.dtype for name, tensor in load_file(artifact.path / "model.safetensors").items()}
    routers = {name for name in dtypes if name.endswith("gate.weight")}
    assert len(routers) == 3
    assert all((dtype == torch.float32) == (name in routers) for name, dtype in dtypes.items())
    assert json.loads((artifact.path / "config.json").read_text())["dtype"] == "bfloat16"
    both = [
        aligned(type(one).from_pretrained(path, dtype=torch.float32, experts_implementation=kernel))
        for one, path, kernel in [
            (model, artifact.path.parent / "unified", None),
            (load(artifact), artifact.path, "gate-and-up-apart"),
        ]
    ]
    inputs = tiny_inputs("llama", [9])
    assert torch.equal(*(one(**inputs).logits for one in both))


def test_the_same_model_gives_the_same_bytes(exported, tmp_path):
    model = unified("mistral")
    first = exported(model, "mixtral")
    assert read_artifact(first.path, KIND).sha256 == first.sha256
    shutil.copytree(tmp_path / "unified", tmp_path / "moved")
    again = export_model(tmp_path / "moved", "mixtral", tmp_path / "again")
    assert (again.sha256, again.files) == (first.sha256, first.files)
    other = exported(unified("mistral", random_seed=1), "mixtral")
    assert other.inputs != first.inputs


def test_owners_and_origin_are_told_and_companions_go_along(tmp_path):
    unified("qwen2", fallback=True).save_pretrained(tmp_path / "unified")
    for name in ("tokenizer.json", "tokenizer_config.json", "LICENSE", "ledger.json"):
        (tmp_path / "unified" / name).write_text("{}")
    artifact = export_model(tmp_path / "unified", "qwen2-moe", tmp_path / "exported")
    names = {path.name for path in artifact.path.iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "LICENSE", "ledger.json", "generation_config.json"} <= names
    assert not any(name.endswith(".py") for name in names)  # it needs no code of ours
    config = json.loads((artifact.path / "config.json").read_text())
    assert config["expert_names"] == ["owner-0", "owner-1", "owner-2", "seed"]
    assert "auto_map" not in config
    card = (artifact.path / "README.md").read_text()
    assert "| 3 | seed |" in card
    assert artifact.inputs["model"][:16] in card


def test_a_large_model_is_read_from_and_written_to_several_files(tmp_path):
    model = unified("olmo2")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    model.save_pretrained(tmp_path / "whole")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    sharded = export_model(tmp_path / "sharded", "flexolmo", tmp_path / "a")
    whole = export_model(tmp_path / "whole", "flexolmo", tmp_path / "b")
    assert sharded.files["model.safetensors"] == whole.files["model.safetensors"]

    outputs = [Output(name, tensor.dtype, tensor) for name, tensor in read_checkpoint(whole.path).tensors.items()]
    shutil.copytree(whole.path, tmp_path / "c")
    (tmp_path / "c" / "model.safetensors").unlink()
    write_outputs(tmp_path / "c", outputs, shard_bytes=20_000)
    files = list((tmp_path / "c").glob("model-*.safetensors"))
    assert len(files) > 2
    assert max(file.stat().st_size for file in files) < 30_000
    state = AutoModelForCausalLM.from_pretrained(tmp_path / "c").state_dict()
    expected = AutoModelForCausalLM.from_pretrained(whole.path).state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in expected.items())


@pytest.mark.parametrize("tied", [True, False])
def test_what_merge_writes_is_exported_as_well(tied, seed_folder, tmp_path):
    seed = make_tiny_llama(tmp_path / "seed", seed_folder, tied=tied)
    experts = {name: finetune(seed, tmp_path / name, random_seed=index) for index, name in enumerate("abc")}
    router = RouterSettings(decide="every-layer", context="token", experts_per_token=2)
    merge_checkpoints(seed, experts, tmp_path / "merged", router)  # without examples the router is random
    target = load(export_model(tmp_path / "merged", "mixtral", tmp_path / "exported"), experts=None)
    assert type(target).__name__ == "MixtralForCausalLM"
    merged = aligned(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    inputs = tiny_inputs("llama", [12, 12, 12])
    ours, theirs = merged(**inputs).logits, target(**inputs).logits
    assert (ours - theirs).abs().max() < CLOSE * ours.abs().max()
