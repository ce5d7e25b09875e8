"""Promise 3 for every family: a folder in several shards loads with transformers alone, and answers bit for bit."""

import os
import subprocess
import sys

import pytest
import torch
import transformers

from families import DECODERS, EVERY_CLASS, answer, tiny_inputs, tiny_seed, tiny_unified

LOW_RANK = [("bert", "BertModel"), ("vit", "ViTForImageClassification"), ("llama", "LlamaForCausalLM")]
READ = """
import sys
import torch
import transformers

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
torch.set_num_threads(1)
found = {}
for name, (auto, folder, batch, new_tokens) in torch.load(sys.argv[1]).items():
    model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    with torch.no_grad():
        output = model(**batch, output_routing=True)
        text = model.generate(**batch, max_new_tokens=new_tokens, do_sample=False) if new_tokens else None
    logits = output.get("logits")
    experts = {layer: routing.experts for layer, routing in output.routings.items()}
    found[name] = (output.last_hidden_state if logits is None else logits, experts, text)
torch.save(found, sys.argv[2])
"""


def auto_class(name):
    return next((auto for auto in ("ForCausalLM", "ForImageClassification") if name.endswith(auto)), "")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """name → (auto class, folder, inputs, tokens to generate), of every class; of some with low-rank experts too."""
    root = tmp_path_factory.mktemp("unified")
    cases = {}
    every = [(family, name, name, None) for family, name in EVERY_CLASS]
    low_rank = [(family, name, f"{name}-low-rank", [2, None, 3]) for family, name in LOW_RANK]
    for family, name, case, ranks in every + low_rank:
        options = {"decide": "every-layer", "experts_per_token": 2, "expert_ranks": ranks}
        model = tiny_unified(tiny_seed(family, name), noise=0.3, **options)
        model.save_pretrained(root / case, max_shard_size="40KB")
        new_tokens = 6 if auto_class(name) == "ForCausalLM" else 0
        batch = tiny_inputs(family, [5, 9, 7], side="left" if family in DECODERS else "right")
        cases[case] = (f"AutoModel{auto_class(name)}", str(root / case), batch, new_tokens)
    return root, cases


def test_a_fresh_process_without_the_package_gives_the_same_answers_and_texts(folders):
    root, cases = folders
    torch.save(cases, root / "cases.pt")
    run = subprocess.run(
        [sys.executable, "-c", READ, root / "cases.pt", root / "found.pt"],
        env={**os.environ, "HF_MODULES_CACHE": str(root / "modules"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = torch.load(root / "found.pt")
    for name, (auto, folder, batch, new_tokens) in cases.items():
        model = getattr(transformers, auto).from_pretrained(folder).eval()
        assert type(model).__module__ == "collegium.moe.modeling"
        with torch.no_grad():
            output = model(**batch, output_routing=True)
            text = model.generate(**batch, max_new_tokens=new_tokens, do_sample=False) if new_tokens else None
        states, experts, other_text = found[name]
        assert torch.equal(answer(output), states), name
        assert all(torch.equal(experts[layer], routing.experts) for layer, routing in output.routings.items()), name
        assert text is None or torch.equal(text, other_text), name


def test_the_folder_holds_the_files_of_the_room_and_one_tensor_for_each_expert_and_matrix(folders):
    root, _ = folders
    files = {path.name for path in (root / "LlamaForCausalLM").glob("*.py")}
    assert files == {f"{name}.py" for name in ("architectures", "configuration", "context", "experts", "layer")} | {
        f"{name}.py" for name in ("low_rank", "memory", "mixin", "modeling", "router")
    }
    index = (root / "LlamaForCausalLM" / "model.safetensors.index.json").read_text()
    for matrix in ("gate_proj", "up_proj", "down_proj"):
        for part in ("weight", "bias"):
            assert f'"model.layers.2.mlp.experts.1.{matrix}.{part}"' in index
    assert "lm_head" not in index  # tied
