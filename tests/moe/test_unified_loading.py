"""Promise 3: saved and loaded, a unified model is the same bit for bit, with and without this package."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel

from collegium.moe.modeling import CollegiumBertModel

READ = """
import sys
import torch
{first}
from transformers import AutoModel
torch.set_num_threads(1)
folder, inputs, output = sys.argv[1:]
model = AutoModel.from_pretrained(folder, {options}).eval()
batch = torch.load(inputs)
with torch.no_grad():
    result = model(**batch, output_routing=True)
torch.save({{
    "states": result.last_hidden_state,
    "experts": {{layer: routing.experts for layer, routing in result.routings.items()}},
    "weights": model.state_dict(),
    "module": type(model).__module__,
}}, output)
"""
BLOCK = """
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "collegium":
            raise ImportError("collegium is not installed here")
sys.meta_path.insert(0, Blocked())
try:
    import collegium
except ImportError:
    pass
else:
    sys.exit("the package is still there")
"""


@pytest.fixture(scope="module")
def saved(make_moe, make_batch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unified")
    model = make_moe(noise=0.3, experts_per_token=2, fallback=True)
    model.save_pretrained(folder / "model")
    torch.save(make_batch([3, 9, 5, 9]), folder / "inputs.pt")
    return model, folder


def test_a_saved_model_loads_bit_for_bit(saved, make_batch):
    model, folder = saved
    loaded = AutoModel.from_pretrained(folder / "model").eval()
    assert isinstance(loaded, CollegiumBertModel)
    own, other = model.state_dict(), loaded.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) and tensor.dtype == other[name].dtype for name, tensor in own.items())
    batch = make_batch([3, 9, 5])
    assert torch.equal(model(**batch).last_hidden_state, loaded(**batch).last_hidden_state)


def test_a_fresh_process_gives_the_same_with_and_without_the_package(saved):
    model, folder = saved
    environment = {
        **os.environ,
        "HF_MODULES_CACHE": str(folder / "modules"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    scripts = {
        "with": READ.format(first="import collegium", options="trust_remote_code=False"),
        "without": READ.format(first=BLOCK, options="trust_remote_code=True"),
    }
    runs = {
        name: subprocess.Popen(
            [sys.executable, "-c", script, folder / "model", folder / "inputs.pt", folder / f"{name}.pt"],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, script in scripts.items()
    }
    for name, run in runs.items():
        printed, _ = run.communicate(timeout=300)
        assert run.returncode == 0, f"{name}: {printed}"
    results = {name: torch.load(folder / f"{name}.pt") for name in runs}
    with torch.no_grad():
        here = model(**torch.load(folder / "inputs.pt"), output_routing=True)
    assert results["with"]["module"] == "collegium.moe.modeling"
    assert results["without"]["module"].startswith("transformers_modules.")
    for result in results.values():
        assert torch.equal(result["states"], here.last_hidden_state)
        assert all(torch.equal(result["experts"][layer], routing.experts) for layer, routing in here.routings.items())
        assert all(torch.equal(tensor, result["weights"][name]) for name, tensor in model.state_dict().items())


def test_the_folder_holds_one_tensor_for_each_expert_and_matrix(saved):
    _, folder = saved
    tensors = load_file(folder / "model" / "model.safetensors")
    for layer in (1, 2):
        for expert in range(4):
            for matrix in ("up_proj", "down_proj"):
                assert f"encoder.layer.{layer}.intermediate.experts.{expert}.{matrix}.weight" in tensors
    assert "encoder.layer.0.intermediate.dense.weight" in tensors
    config = json.loads((folder / "model" / "config.json").read_text())
    assert config["model_type"] == "collegium-bert"
    assert config["auto_map"] == {
        "AutoConfig": "modeling.CollegiumBertConfig",
        "AutoModel": "modeling.CollegiumBertModel",
    }


def test_every_setting_of_the_router_survives_saving(make_moe, tmp_path):
    options = {
        "decide": "every-layer",
        "decide_layer": 2,
        "context": "seed",
        "experts_per_token": 2,
        "weighting": "softmax",
        "learn_context_weight": True,
        "fallback": True,
    }
    make_moe(**options).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert {name: getattr(config, name) for name in options} == options
    assert config.expert_names == ["owner-0", "owner-1", "owner-2"]


@pytest.mark.parametrize("how", ["in the file", "while loading"])
def test_case_7_the_router_stays_float32_in_a_bfloat16_model(how, make_moe, make_batch, tmp_path):
    model = make_moe(noise=0.3)
    expected = {name: tensor for name, tensor in model.state_dict().items() if ".router." in name}
    if how == "in the file":
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data if ".router." in name else parameter.data.bfloat16()
        model.config.dtype = torch.bfloat16
    model.save_pretrained(tmp_path)
    options = {} if how == "in the file" else {"dtype": torch.bfloat16}
    loaded = AutoModel.from_pretrained(tmp_path, **options).eval()
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == (torch.float32 if ".router." in name else torch.bfloat16), name
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in expected.items())
    output = loaded(**make_batch([4, 7]), output_routing=True)
    assert output.last_hidden_state.dtype == torch.bfloat16
    assert output.routings[1].logits.dtype == torch.float32


def test_a_model_saved_in_shards_loads_bit_for_bit(make_moe, tmp_path):
    model = make_moe(noise=0.3)
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    loaded = AutoModel.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
