"""The real encoder on real texts: a small run of every stage, and the model loaded with transformers alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import Recipe
from collegium.core.router_settings import RouterSettings
from collegium.evaluation.routing import RoutedTokens
from collegium.flow.simulate import simulate
from collegium.models.encoder import Encoder, embed_texts
from collegium.models.expert_tensors import ffn_tensors
from collegium.models.seed_model import load_seed_model
from collegium.unify.merge import unified_model
from collegium.unify.unified_folder import read_unified

pytestmark = pytest.mark.real
RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"
SMALL = [
    "pool={data: imdb, limit: 400}",  # needs no package of the operating system
    "max_length=32",
    "selection.size=80",
    "training.steps=12",
    *(f"owners.{name}.limits={{train: 64, validation: 20, test: 40}}" for name in ("newsroom", "cinema", "developers")),
]
TEXTS = ["Shares in the bank fell sharply.", "A dull film with a weak plot.", "Return the indices of the sorted array."]
ALONE = """
import importlib.abc, json, sys
class NoCollegium(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "collegium":
            raise ModuleNotFoundError("No module named 'collegium'", name=name)
sys.meta_path.insert(0, NoCollegium())
import torch
from transformers import AutoModel, AutoTokenizer
torch.set_num_threads(1)
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
with torch.inference_mode():
    batch = tokenizer(json.loads(sys.argv[2]), padding=True, return_tensors="pt")
    output = model(**{k: batch[k] for k in ("input_ids", "attention_mask")}, output_routing=True)
mask = batch["attention_mask"].unsqueeze(-1)
pooled = (output.last_hidden_state * mask).sum(1) / mask.sum(1)
print(json.dumps({
    "embeddings": torch.nn.functional.normalize(pooled, dim=-1).tolist(),
    "experts": next(iter(output.routings.values())).experts[:, 0, 0].tolist(),
}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    torch.set_num_threads(2)
    simulate(load_recipe(RECIPE, Recipe, SMALL), folder)
    torch.set_num_threads(1)
    return folder


def test_unified_beats_seed_soup_and_every_single_expert_on_the_union(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    mean = {method: accuracy["union"]["mean"] for method, accuracy in summary["accuracy"].items()}
    others = ["seed", "soup", "expert:newsroom", "expert:cinema", "expert:developers"]
    assert mean["unified"] > max(mean[method] for method in others), mean
    assert summary["routing"]["sequence"] > 0.9


def test_copies_of_the_real_seed_are_the_real_seed() -> None:
    seed = load_seed_model("minilm", 48)
    copies = {name: ffn_tensors(seed, range(1, 6)) for name in ("a", "b", "c")}
    model = unified_model(seed, copies, range(1, 6), RouterSettings())
    for router in model.routers.values():
        torch.nn.init.normal_(router.weight)
    unified = Encoder(model, seed.tokenizer, seed.pooling, seed.max_length)
    np.testing.assert_allclose(embed_texts(unified, TEXTS), embed_texts(seed, TEXTS), atol=1e-6)


def test_the_unified_model_loads_with_transformers_alone_and_answers_the_same(run: Path, tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", ALONE, str(run / "model"), json.dumps(TEXTS)],
        env={"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    alone = json.loads(finished.stdout.splitlines()[-1])
    unified = read_unified(run / "model")
    watch = RoutedTokens(unified.encoder, len(TEXTS))
    np.testing.assert_allclose(alone["embeddings"], embed_texts(unified.encoder, TEXTS, 8, watch), atol=1e-5)
    (tokens,) = watch.tokens.values()
    assert alone["experts"] == tokens.argmax(axis=1).tolist()
