"""Seeds of every family of texts become unified models; copies of the seed's networks answer as the seed does."""

import shutil

import pytest
import torch

from collegium.core.router_settings import RouterSettings
from collegium.models.expert_tensors import dense_model, ffn_tensors
from collegium.models.seed_model import load_seed_model
from collegium.moe.architectures import ARCHITECTURES
from collegium.unify.merge import unified_model
from families import TEXTS, answer, tiny_seed


@pytest.mark.parametrize("family", TEXTS)
def test_copies_of_the_seed_answer_as_the_seed_and_changed_experts_do_not(family, seed_folder, tmp_path):
    tiny_seed(family).save_pretrained(tmp_path)
    for file in seed_folder.glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    seed = load_seed_model(str(tmp_path))
    context = "causal" if ARCHITECTURES[family].kind == "decoder" else "sequence"
    router, layers = RouterSettings(context=context, warmup_tokens=0), [1, 2]
    copies = ffn_tensors(seed, layers)
    batch = seed.tokenise(["the old cow", "hull mast keel sail near far"])
    expected = answer(seed.model(**batch))
    model = unified_model(seed, {"farm": copies, "port": copies}, layers, router)
    assert torch.equal(answer(model(**batch)), expected)  # a router at zero sends all tokens to the first
    assert torch.equal(answer(dense_model(seed, copies).model(**batch)), expected)
    changed = {name: tensor + 0.1 for name, tensor in copies.items()}
    found = answer(unified_model(seed, {"farm": changed, "port": copies}, layers, router)(**batch))
    assert (found - expected).abs().max() > 0.01
    assert (found - answer(dense_model(seed, changed).model(**batch))).abs().max() < 1e-5 * expected.abs().max()
