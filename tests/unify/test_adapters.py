"""LoRA folders are merged to the model that PEFT makes of them, or refused by the name of what is not supported."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from collegium.core.errors import IncompatibleExperts
from collegium.moe.architectures import ARCHITECTURES
from collegium.unify import byte_merge
from collegium.unify.adapter import LowRank
from collegium.unify.byte_merge import Constant, Output, write_outputs
from collegium.unify.checkpoint import read_checkpoint
from collegium.unify.compatibility import check_experts
from collegium.unify.merge_checkpoints import read_expert
from collegium.unify.moe_layout import ffn_of, moe_outputs

BERT = ARCHITECTURES["bert"]
FFN_MODULES = r"encoder\.layer\.\d+\.(intermediate|output)\.dense"
UP, DOWN = "encoder.layer.1.intermediate.dense", "encoder.layer.1.output.dense"
peft_warns = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


@pytest.fixture
def adapter(seed_folder, tmp_path):
    """A folder as PEFT writes it, by hand: factors of rank 2 for one layer; `config` changes its configuration."""

    def make(factors=None, **config):
        generator = torch.Generator().manual_seed(0)
        if factors is None:
            factors = {
                f"base_model.model.{module}.lora_{kind}.weight": torch.randn(shape, generator=generator)
                for module, (rows, columns) in {UP: (48, 32), DOWN: (32, 48)}.items()
                for kind, shape in {"A": (2, columns), "B": (rows, 2)}.items()
            }
        folder = tmp_path / "adapter"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        save_file(factors, folder / "adapter_model.safetensors")
        own = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["dense"], "lora_dropout": 0.1}
        (folder / "adapter_config.json").write_text(json.dumps(own | config))
        return folder

    return make


def merged(folder, seed_folder, target, dtype="F32"):
    """The expert's tensors as they are written, under neutral names."""
    seed = read_checkpoint(seed_folder)
    expert = read_expert(folder, seed, str)
    ffn = ffn_of(seed, BERT)
    notes = check_experts(seed, {"a": expert}, ffn, "refuse", dtype)
    assert notes == []
    target.mkdir()
    write_outputs(target, [Output(ffn[name], dtype, expert.tensors[name]) for name in ffn])
    return load_file(target / "model.safetensors")


def fault_of(folder, seed_folder):
    return "\n".join(read_expert(folder, read_checkpoint(seed_folder), str).faults)


@peft_warns
@pytest.mark.filterwarnings("ignore:.*use_rslora:UserWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"layer.1.intermediate.dense": 2, "output.dense": 3}},
        {"alpha_pattern": {"^encoder.layer.0.output.dense": 7, "intermediate.dense": 5}},
        {"use_rslora": True, "rank_pattern": {UP: 1}, "alpha_pattern": {DOWN: 1}},
        {"use_dora": True},
        {"use_dora": True, "use_rslora": True, "rank_pattern": {UP: 2}},
    ],
    ids=str,
)
def test_case_19_a_lora_folder_is_merged_as_peft_merges_it(options, seed, seed_folder, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    monkeypatch.setattr(byte_merge, "VALUES", 100)  # blocks that begin and end within rows
    from transformers import BertModel

    config = peft.LoraConfig(r=4, lora_alpha=10, target_modules=FFN_MODULES, init_lora_weights=False, **options)
    torch.manual_seed(0)
    model = peft.get_peft_model(BertModel.from_pretrained(seed_folder), config)
    for name, parameter in model.named_parameters():
        if "magnitude" in name:
            parameter.data *= 1.0 + torch.rand(parameter.shape)
    model.save_pretrained(tmp_path / "adapter")
    ours = merged(tmp_path / "adapter", seed_folder, tmp_path / "out")
    theirs = model.merge_and_unload().state_dict()
    changed = 0
    for name, neutral in ffn_of(read_checkpoint(seed_folder), BERT).items():
        torch.testing.assert_close(ours[neutral], theirs[name], rtol=1e-5, atol=1e-5)
        changed += not torch.equal(ours[neutral], seed.model.state_dict()[name])
    assert changed == 6


def test_case_19_rslora_has_another_scale(adapter, seed_folder, tmp_path):
    own = load_file(seed_folder / "model.safetensors")[f"{UP}.weight"]
    plain = merged(adapter(), seed_folder, tmp_path / "plain")["layers.1.up_proj.weight"] - own
    scaled = merged(adapter(use_rslora=True), seed_folder, tmp_path / "scaled")["layers.1.up_proj.weight"] - own
    torch.testing.assert_close(scaled, plain * math.sqrt(2), rtol=1e-4, atol=1e-5)


def test_weights_without_factors_are_the_seeds_bytes(adapter, seed_folder, tmp_path):
    ours = merged(adapter(), seed_folder, tmp_path / "out")
    own = load_file(seed_folder / "model.safetensors")
    for name, neutral in ffn_of(read_checkpoint(seed_folder), BERT).items():
        assert torch.equal(ours[neutral], own[name]) == (name not in (f"{UP}.weight", f"{DOWN}.weight"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "type IA3"),
        ({"modules_to_save": ["pooler"]}, "uses modules_to_save"),
        ({"bias": "lora_only"}, "uses bias = lora_only"),
        ({"lora_bias": True}, "uses lora_bias"),
        ({"fan_in_fan_out": True}, "uses fan_in_fan_out"),
        ({"layer_replication": [[0, 2]]}, "uses layer_replication"),
        ({"target_parameters": ["x"]}, "uses target_parameters"),
        ({"use_something_new": True}, "uses use_something_new"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' changed the seed's own weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights = 'olora'"),
        ({"alpha_pattern": {"(a+)+b": 3}}, "regular expressions"),
        ({"lora_alpha": "6"}, "alpha that is no number"),
        ({"use_dora": True}, "do not fit"),
    ],
    ids=str,
)
def test_case_19_what_is_not_supported_is_refused_by_name(config, words, adapter, seed_folder):
    assert words in fault_of(adapter(**config), seed_folder)


def test_what_is_switched_off_is_no_reason_to_refuse(adapter, seed_folder):
    folder = adapter(bias="none", modules_to_save=None, use_dora=False, megatron_core="megatron.core", loftq_config={})
    assert read_expert(folder, read_checkpoint(seed_folder), str).faults == ()


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ({}, "holds no factors"),
        ({f"{UP}.lora_A.weight": (2, 32)}, f"factors of {UP} that do not fit"),
        ({f"{UP}.lora_A.weight": (2, 32), f"{UP}.lora_B.weight": (48, 3)}, "do not fit its weight [48, 32]"),
        ({f"{UP}.lora_A.weight": (0, 32), f"{UP}.lora_B.weight": (48, 0)}, "do not fit"),
        ({"nowhere.lora_A.weight": (2, 32), "nowhere.lora_B.weight": (48, 2)}, "nowhere, which the seed does not"),
        ({"lora_embedding_A": (2, 32)}, "no LoRA factors: base_model.model.lora_embedding_A"),
    ],
    ids=str,
)
def test_factors_that_do_not_fit_are_named(factors, words, adapter, seed_folder):
    tensors = {f"base_model.model.{name}": torch.ones(shape) for name, shape in factors.items()}
    assert words in fault_of(adapter(tensors), seed_folder)


def test_case_12_an_adapter_in_a_pickle_is_never_opened(adapter, seed_folder):
    folder = adapter()
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "no adapter_model.safetensors; pickles are never opened" in fault_of(folder, seed_folder)


def test_case_11_a_link_in_an_adapter_is_refused(adapter, seed_folder, tmp_path):
    folder = adapter()
    (folder / "adapter_model.safetensors").rename(tmp_path / "elsewhere")
    (folder / "adapter_model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert "links" in fault_of(folder, seed_folder)


def test_case_20_factors_that_make_infinite_weights_are_named(adapter, seed_folder):
    factors = {f"{UP}.lora_A.weight": torch.full((2, 32), 1e30), f"{UP}.lora_B.weight": torch.full((48, 2), 1e30)}
    seed = read_checkpoint(seed_folder)
    expert = read_expert(adapter(factors), seed, str)
    with pytest.raises(IncompatibleExperts, match=f"a's {UP}.weight holds infinite values or NaN"):
        check_experts(seed, {"a": expert}, ffn_of(seed, BERT), "refuse", "F32")


def test_factors_outside_the_feed_forward_networks_are_a_difference(adapter, seed_folder, tmp_path):
    module = "encoder.layer.0.attention.self.query"
    factors = {f"{module}.lora_A.weight": torch.ones(2, 32), f"{module}.lora_B.weight": torch.ones(32, 2)}
    seed = read_checkpoint(seed_folder)
    expert = read_expert(adapter(factors), seed, str)
    with pytest.raises(IncompatibleExperts, match=f"a changed 1 tensors outside .*{module}.weight"):
        check_experts(seed, {"a": expert}, ffn_of(seed, BERT), "refuse", "F32")
    outputs = moe_outputs(seed, {"a": expert, "b": seed}, BERT, ffn_of(seed, BERT), {}, "F32", "average", False)
    (tmp_path / "out").mkdir()
    write_outputs(tmp_path / "out", outputs)
    own = load_file(seed_folder / "model.safetensors")[f"{module}.weight"]
    ours = load_file(tmp_path / "out" / "model.safetensors")[f"{module}.weight"]
    torch.testing.assert_close(ours, own + 3.0)  # half of alpha / rank · rank


@pytest.mark.parametrize(("first", "count"), [(0, 12), (0, 1), (11, 1), (2, 7), (3, 3), (4, 8)])
def test_any_stretch_of_values_is_that_of_the_whole(first, count):
    generator = torch.Generator().manual_seed(0)
    weight, a, b = (torch.randn(shape, generator=generator) for shape in ((4, 3), (2, 3), (4, 2)))
    for lengths in (None, torch.rand(4, generator=generator)):
        source = LowRank(Constant(weight), a, b, 0.5, lengths)
        whole = weight + 0.5 * b @ a
        if lengths is not None:
            whole = torch.nn.functional.normalize(whole, dim=1) * lengths[:, None]
        torch.testing.assert_close(source.values(first, count), whole.flatten()[first : first + count])
