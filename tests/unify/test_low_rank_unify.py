"""LoRA experts stay factors in the folder of a unified model, beside one base, and answer as whole matrices would."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from collegium.models.encoder import Encoder, embed_texts
from collegium.models.expert_tensors import ffn_tensors, materialised
from collegium.unify import routed_model
from collegium.unify.merge import unified_model
from collegium.unify.unified_folder import read_unified
from collegium.unify.unify import unify

TEXTS = ["the old cow", "a pig", "hull mast keel sail near far", "wheat barley oat rye the a", "tide"]
LORA = {"parameters": "lora", "rank": 2, "lora_alpha": 6.0, "steps": 1}
NEVER = {"keep": "never"}


@pytest.fixture
def unify_by_hand(make_charter, make_contribution, pool, seed, tmp_path):
    """The folder of farm and port under a charter of these settings."""

    def run(name="model", **changes):
        charter = make_charter(**{"training": LORA, "joint_tuning": NEVER, **changes})
        paths = [make_contribution(charter, owner) for owner in charter.owners]
        unify(charter, paths, pool, seed, tmp_path / name)
        return tmp_path / name

    return run


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("router", [{}, {"fallback": True}, {"decide": "every-layer", "context": "seed"}], ids=str)
def test_the_folder_holds_the_factors_and_the_seeds_ffn_once(router, unify_by_hand, make_factors, seed):
    stored = load_file(unify_by_hand(router=router) / "model.safetensors")
    layers = [0, 1, 2] if router.get("decide") == "every-layer" else [1, 2]
    expected = set()
    for layer in layers:
        place = f"encoder.layer.{layer}.intermediate"
        for neutral, tensor in ffn_tensors(seed, [layer]).items():
            name = f"{place}.base.{neutral.split('.', 2)[2]}"
            assert bits(stored[name]) == bits(tensor)
            expected.add(name)
        for index in range(2):
            for neutral, factor in make_factors([*layers], random_seed=index).items():
                _, of, matrix, kind = neutral.split(".")
                if int(of) == layer:
                    name = f"{place}.experts.{index}.{matrix}_{kind[-1]}"
                    torch.testing.assert_close(stored[name], 3.0 * factor if kind == "lora_B" else factor)
                    expected.add(name)
    assert {name for name in stored if ".base." in name or ".experts." in name} == expected


@pytest.mark.parametrize(
    "router",
    [
        {},
        {"fallback": True, "experts_per_token": 2},
        {"decide": "every-layer", "context": "seed", "experts_per_token": 2},
    ],
    ids=str,
)
def test_it_answers_as_whole_matrices_do(router, unify_by_hand, seed, monkeypatch):
    low_rank = read_unified(unify_by_hand(router=router))

    def whole(seed, experts, *rest):
        return unified_model(seed, {name: materialised(seed, own) for name, own in experts.items()}, *rest)

    monkeypatch.setattr(routed_model, "unified_model", whole)
    full = read_unified(unify_by_hand("whole", router=router))
    assert low_rank.encoder.model.config.expert_ranks == [2, 2]
    assert full.encoder.model.config.expert_ranks is None
    found, expected = embed_texts(low_rank.encoder, TEXTS), embed_texts(full.encoder, TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert abs(found - embed_texts(seed, TEXTS)).max() > 0.01
    sizes = [(one.artifact.path / "model.safetensors").stat().st_size for one in (low_rank, full)]
    assert sizes[0] < 0.9 * sizes[1]


def test_joint_tuning_moves_factors_and_never_the_base(unify_by_hand):
    before = load_file(unify_by_hand() / "model.safetensors")
    tuned = unify_by_hand("tuned", joint_tuning={"keep": "always", "learning_rate": 0.01, "batch_size": 16})
    after = load_file(tuned / "model.safetensors")
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert moved
    assert all(".experts." in name or ".router." in name for name in moved)
    for index in range(2):
        assert any(f".experts.{index}." in name for name in moved)


def test_the_folder_loads_where_the_package_is_not_installed(unify_by_hand, tmp_path):
    folder = unify_by_hand(router={"experts_per_token": 2}, output_dtype="bfloat16")
    code = (
        "import sys; sys.modules['collegium'] = None\n"
        "import torch; from transformers import AutoModel\n"
        "torch.set_num_threads(1)\n"
        "model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True).eval()\n"
        "torch.save(model(torch.tensor([[2, 5, 6, 3]])).last_hidden_state.detach(), sys.argv[2])\n"
    )
    environment = {**os.environ, "PYTHONPATH": "", "HF_MODULES_CACHE": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code, folder, tmp_path / "result"], check=True, env=environment, cwd=tmp_path)
    with torch.no_grad():
        expected = read_unified(folder).encoder.model(torch.tensor([[2, 5, 6, 3]])).last_hidden_state
    assert torch.equal(torch.load(tmp_path / "result"), expected)


def test_owners_of_other_ranks_and_of_whole_matrices_stand_in_one_model(seed, make_factors, make_expert, charter):
    experts = {"a": make_factors(rank=1, random_seed=1), "b": make_expert(), "c": make_factors(rank=3, random_seed=2)}
    router = charter.terms.router.model_copy(update={"experts_per_token": 3})
    whole = {name: materialised(seed, own) for name, own in experts.items()}
    models = [unified_model(seed, one, [1, 2], router) for one in (experts, whole)]
    assert models[0].config.expert_ranks == [1, None, 3]
    found, expected = (
        embed_texts(Encoder(model, seed.tokenizer, seed.pooling, seed.max_length), TEXTS) for model in models
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
