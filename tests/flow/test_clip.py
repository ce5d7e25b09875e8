"""A whole CLIP as seed: pictures by its vision tower, class names by its text tower, through the whole flow."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, CLIPModel, CLIPVisionModel

from collegium.core.errors import RecipeError
from collegium.core.recipe import Recipe
from collegium.data.images import picture_of
from collegium.flow.evaluate_model import evaluate_model
from collegium.flow.predict import predict_items
from collegium.flow.simulate import owner_recipe, simulate
from collegium.models.encoder import embed_texts
from collegium.models.seed_model import load_seed_model
from collegium.moe.modeling import CollegiumCLIPVisionModelWithProjection
from collegium.unify.unified_folder import read_unified
from tiny import NO_OVERLAP_CHECK, draw, make_tiny_clip, write_pictures

KINDS = {"pets": ["cat", "dog", "hen"], "flowers": ["rose", "lily", "daisy"]}
POOL_KINDS = ["lamp", "road", "book", "cloud", "stone", "clock"]
PROMPT = "a photo of a {label}"


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    words = ["a", "photo", "of", *KINDS["pets"], *KINDS["flowers"], *POOL_KINDS]
    return make_tiny_clip(tmp_path_factory.mktemp("clip"), words)


@pytest.fixture(scope="module")
def recipe(clip, tmp_path_factory):
    data = tmp_path_factory.mktemp("pictures")
    for name, kinds in KINDS.items():
        write_pictures(data / name, kinds, 20)
    write_pictures(data / "pool", POOL_KINDS, 12)
    owners = {
        name: {
            "data": str(data / name),
            "prompt": PROMPT,
            "privacy": NO_OVERLAP_CHECK,
            "publish_labels": name == "pets",
        }
        for name in KINDS
    }
    return Recipe.model_validate(
        {
            "project": "clip",
            "seed_model": str(clip),
            "task": "label-matching",
            "pool": {"data": str(data / "pool"), "prompt": PROMPT},
            "owners": owners,
            "selection": {"size": 20},
            "training": {"steps": 50, "batch_size": 32, "warmup_steps": 0, "learning_rate": 3e-3},
            "joint_tuning": {"batch_size": 16},
        }
    )


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "clip"
    simulate(recipe, folder)
    return folder


def test_embeddings_are_those_of_the_whole_model(clip):
    seed, whole = load_seed_model(str(clip)), CLIPModel.from_pretrained(clip).eval()
    pictures = [picture_of(draw(kind, 0, 16)) for kind in ("cat", "rose", "lamp")]
    texts = ["a photo of a cat", "rose", "a photo of a cloud of dog"]  # of different lengths: padded in one batch
    with torch.no_grad():
        pixels = seed.tokenise(pictures)["pixel_values"]
        of_pictures = whole.get_image_features(pixel_values=pixels).pooler_output
        tokenizer = AutoTokenizer.from_pretrained(clip)
        of_texts = [whole.get_text_features(**tokenizer(text, return_tensors="pt")).pooler_output for text in texts]
    for found, expected in (
        (embed_texts(seed, pictures), of_pictures),
        (embed_texts(seed.names_reader, texts), torch.cat(of_texts)),
    ):
        expected = torch.nn.functional.normalize(expected, dim=-1).numpy()
        assert found.shape == (3, 24)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (seed.modality, seed.dim, seed.embedding_dim, seed.has_head) == ("image", 32, 24, False)


@pytest.mark.parametrize("part", ["text_model.encoder.layers.0.mlp.fc1.weight", "visual_projection.weight"])
def test_the_fingerprint_covers_both_towers_and_projections(clip, part, tmp_path):
    model = CLIPModel.from_pretrained(clip)
    model.state_dict()[part].view(-1)[0] += 1
    model.save_pretrained(tmp_path)
    for file in clip.iterdir():
        if not (tmp_path / file.name).exists():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert load_seed_model(str(tmp_path)).fingerprint != load_seed_model(str(clip)).fingerprint
    assert load_seed_model(str(clip)).fingerprint == load_seed_model(str(clip)).fingerprint


def test_experts_in_the_vision_tower_learn_and_route(run):
    summary = json.loads((run / "summary.json").read_bytes())
    accuracy = summary["accuracy"]
    assert accuracy["oracle"]["union"]["mean"] > accuracy["seed"]["union"]["mean"] + 0.2
    assert accuracy["unified"]["union"]["mean"] > accuracy["seed"]["union"]["mean"] + 0.1


def test_the_unified_folder_holds_the_vision_tower_alone_and_loads_by_itself(run):
    model = AutoModel.from_pretrained(run / "model")
    assert type(model) is CollegiumCLIPVisionModelWithProjection
    assert not any("text_model" in name for name in model.state_dict())
    assert "visual_projection.weight" in model.state_dict()
    code = (
        "import sys; from transformers import AutoModel\n"
        f"model = AutoModel.from_pretrained({str(run / 'model')!r}, trust_remote_code=True)\n"
        "import torch; output = model(pixel_values=torch.zeros(1, 3, 16, 16))\n"
        "print(type(model).__name__, tuple(output.image_embeds.shape))\n"
        "assert 'collegium' not in sys.modules\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "CollegiumCLIPVisionModelWithProjection (1, 24)", found.stderr


def test_predictions_need_no_text_tower_and_private_names_need_the_seed(run, recipe, clip):
    unified = read_unified(run / "model")
    assert unified.classes.domains == ["pets"]
    answers = list(predict_items(unified, [picture_of(draw("cat", 50))], ["cat.png"]))
    assert answers[0]["domain"] == "pets"
    found = evaluate_model(run / "model", [owner_recipe(recipe, "flowers")], "test", str(clip))
    summary = json.loads((run / "summary.json").read_bytes())
    assert found["accuracy"]["told"]["flowers"] == summary["accuracy"]["unified"]["told"]["flowers"]


def test_a_vision_tower_alone_reads_no_names(recipe, clip, tmp_path):
    CLIPVisionModel(CLIPModel.from_pretrained(clip).config.vision_config).save_pretrained(tmp_path / "seed")
    processor = clip / "preprocessor_config.json"
    (tmp_path / "seed" / processor.name).write_bytes(processor.read_bytes())
    with pytest.raises(RecipeError, match="reads no class names"):
        simulate(recipe.model_copy(update={"seed_model": str(tmp_path / "seed")}), tmp_path / "run")
