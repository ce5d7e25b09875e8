"""`collegium merge --keep-lora`: LoRA folders stay factors beside one base, also of different ranks and mixed."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM
from typer.testing import CliRunner

from collegium.cli.main import app
from collegium.core.errors import ArtifactError
from collegium.core.router_settings import RouterSettings
from collegium.unify.export import export_model
from collegium.unify.merge_checkpoints import merge_checkpoints
from finetunes import finetune, make_tiny_llama

BERT_FFN = {"intermediate.dense": (48, 32), "output.dense": (32, 48)}
LLAMA_FFN = {"mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48)}
BERT_MODULES = {f"encoder.layer.{layer}.{name}": shape for layer in range(3) for name, shape in BERT_FFN.items()}
LLAMA_MODULES = {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in LLAMA_FFN.items()}
IDS = torch.tensor([[2, 5, 6, 7, 8, 3], [2, 9, 8, 10, 11, 3]])


def adapter(folder, modules, rank, random_seed=0, **config):
    """A LoRA folder as PEFT writes it; `rank` is that of the first module, the others have one less."""
    generator = torch.Generator().manual_seed(random_seed)
    factors = {}
    for place, (module, (rows, columns)) in enumerate(modules.items()):
        own = rank - (place > 0)
        for kind, shape in {"A": (own, columns), "B": (rows, own)}.items():
            factors[f"base_model.model.{module}.lora_{kind}.weight"] = 0.3 * torch.randn(shape, generator=generator)
        if config.get("use_dora"):
            factors[f"base_model.model.{module}.lora_magnitude_vector"] = torch.rand(rows, generator=generator) + 0.5
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    own = {"peft_type": "LORA", "r": rank - 1, "rank_pattern": {next(iter(modules)): rank}, "lora_alpha": 5, **config}
    (folder / "adapter_config.json").write_text(json.dumps(own))
    return folder


@pytest.fixture
def experts(seed_folder, tmp_path):
    part = {name: shape for name, shape in BERT_MODULES.items() if ".1." in name}
    return {
        "plain": adapter(tmp_path / "plain", BERT_MODULES, 3),
        "whole": finetune(seed_folder, tmp_path / "whole", random_seed=1),
        "scaled": adapter(tmp_path / "scaled", part, 5, random_seed=2, use_rslora=True),
    }


def load(folder, auto=AutoModel):
    return auto.from_pretrained(folder).eval()


@pytest.mark.parametrize("fallback", [False, True])
def test_mixed_experts_answer_as_those_merged_into_whole_matrices(fallback, seed_folder, experts, tmp_path):
    router = RouterSettings(decide="every-layer", experts_per_token=2, fallback=fallback)
    kept = load(merge_checkpoints(seed_folder, experts, tmp_path / "kept", router, keep_lora=True).path)
    merged = load(merge_checkpoints(seed_folder, experts, tmp_path / "merged", router).path)
    assert kept.config.expert_ranks == [3, None, 5]
    assert merged.config.expert_ranks is None
    for model in (kept, merged):
        for router in model.routers.values():
            router.weight.data *= 20  # tokens spread over the experts
    with torch.no_grad():
        found, expected = (model(IDS, output_routing=True) for model in (kept, merged))
    assert {int(one) for routing in found.routings.values() for one in routing.experts.flatten()} >= {0, 1, 2}
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-5)
    stored = load_file(tmp_path / "kept" / "model.safetensors")
    assert not any(".experts.3." in name for name in stored)
    zero = stored["encoder.layer.0.intermediate.experts.2.up_proj_B"]  # this adapter is for layer 1 alone
    assert not zero.any()


def test_folders_of_lora_alone_are_much_smaller(seed_folder, experts, tmp_path):
    folders = {"a": experts["plain"], "b": experts["scaled"]}
    sizes = []
    for keep_lora in (True, False):
        out = merge_checkpoints(seed_folder, folders, tmp_path / str(keep_lora), keep_lora=keep_lora).path
        stored = load_file(out / "model.safetensors")
        sizes.append(sum(tensor.numel() for name, tensor in stored.items() if ".experts." in name or ".base." in name))
    factors = 3 * (3 + 5) * 2 * (32 + 48)
    assert sizes == [3 * (2 * 32 * 48 + 32 + 48) + factors, 2 * 3 * (2 * 32 * 48 + 32 + 48)]
    card = (tmp_path / "True" / "README.md").read_text()
    assert "a 3, b 5" in card


def test_dora_is_merged_anyway_and_that_is_said(seed_folder, experts, tmp_path, capsys):
    dora = adapter(tmp_path / "dora", BERT_MODULES, 2, use_dora=True)
    out = merge_checkpoints(seed_folder, {"a": experts["plain"], "b": dora}, tmp_path / "out", keep_lora=True).path
    assert load(out).config.expert_ranks == [3, None]
    assert "b was merged into whole matrices: with DoRA" in capsys.readouterr().err
    assert "b was merged into whole matrices" in (out / "README.md").read_text()


def test_without_a_lora_folder_nothing_is_kept(seed_folder, experts, tmp_path):
    folders = {"a": experts["whole"]}
    kept = merge_checkpoints(seed_folder, folders, tmp_path / "kept", keep_lora=True)
    assert kept.files == merge_checkpoints(seed_folder, folders, tmp_path / "merged").files


def test_a_decoder_from_the_command_is_exported_with_whole_matrices(seed_folder, tmp_path):
    seed = make_tiny_llama(tmp_path / "seed", seed_folder)
    for name in "ab":
        adapter(tmp_path / name, LLAMA_MODULES, 3, random_seed=ord(name))
    whole = finetune(seed, tmp_path / "whole", random_seed=1)
    arguments = [seed, f"a={tmp_path / 'a'}", f"b={tmp_path / 'b'}", f"whole={whole}", "--to", tmp_path / "kept"]
    options = ["--keep-lora", "--experts-per-token", "2", "--set", "context=token", "--set", "fallback=true"]
    result = CliRunner().invoke(app, ["merge", *map(str, arguments), *options])
    assert result.exit_code == 0, result.output
    kept = load(tmp_path / "kept", AutoModelForCausalLM)
    assert kept.config.expert_ranks == [3, 3, None]
    options = ["--to", "mixtral", "--out", str(tmp_path / "exported")]
    result = CliRunner().invoke(app, ["export", str(tmp_path / "kept"), *options])
    assert result.exit_code == 0, result.output
    exported = load(tmp_path / "exported", AutoModelForCausalLM)
    assert type(exported).__name__ == "MixtralForCausalLM"
    with torch.no_grad():
        found, expected = exported(IDS).logits, kept(IDS).logits
        seed_logits = load(seed, AutoModelForCausalLM)(IDS).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert (expected - seed_logits).abs().max() > 1e-3
    texts = [model.generate(IDS, max_new_tokens=4, do_sample=False) for model in (kept, exported)]
    assert torch.equal(*texts)


def test_an_export_of_factors_that_do_not_fit_is_refused(seed_folder, tmp_path):
    seed = make_tiny_llama(tmp_path / "seed", seed_folder)
    folders = {"a": adapter(tmp_path / "a", LLAMA_MODULES, 3)}
    router = RouterSettings(decide="every-layer", context="token")
    out = merge_checkpoints(seed, folders, tmp_path / "kept", router, keep_lora=True).path
    stored = load_file(out / "model.safetensors")
    name = "model.layers.1.mlp.experts.0.up_proj_B"
    save_file({**stored, name: stored[name][:, :1].clone()}, out / "model.safetensors", {"format": "pt"})
    (out / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match="factors of model.layers.1.mlp.experts.0.up_proj.weight do not fit"):
        export_model(out, "mixtral", tmp_path / "exported")
