"""A whole CLIP under the commands for models that exist: owners, explain, and merge of whole fine-tunes."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, CLIPVisionModelWithProjection
from typer.testing import CliRunner

from collegium.cli.main import app
from collegium.core.errors import IncompatibleExperts
from collegium.core.recipe import Recipe
from collegium.data.images import picture_of
from collegium.evaluation.explain import explain_picture
from collegium.flow.simulate import simulate
from collegium.unify.merge_checkpoints import merge_checkpoints
from collegium.unify.unified_folder import read_unified
from tiny import NO_OVERLAP_CHECK, draw, make_tiny_clip, write_pictures

KINDS = {"pets": ["cat", "dog"], "flowers": ["rose", "lily"], "goods": ["book", "lamp"]}
POOL_KINDS = ["road", "cloud", "stone", "clock"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    words = ["a", "photo", "of", *POOL_KINDS, *(kind for kinds in KINDS.values() for kind in kinds)]
    return make_tiny_clip(tmp_path_factory.mktemp("clip"), words)


@pytest.fixture(scope="module")
def run(clip, tmp_path_factory):
    data, folder = tmp_path_factory.mktemp("pictures"), tmp_path_factory.mktemp("run") / "clip"
    for name, kinds in {**KINDS, "pool": POOL_KINDS}.items():
        write_pictures(data / name, kinds, 12)
    prompt = "a photo of a {label}"
    recipe = {
        "project": "clip",
        "seed_model": str(clip),
        "task": "label-matching",
        "pool": {"data": str(data / "pool"), "prompt": prompt},
        "owners": {
            name: {"data": str(data / name), "prompt": prompt, "privacy": NO_OVERLAP_CHECK, "publish_labels": True}
            for name in KINDS
        },
        "selection": {"size": 12},
        "training": {"steps": 5, "warmup_steps": 0, "learning_rate": 3e-3},
        "joint_tuning": {"batch_size": 16, "keep": "never"},
    }
    simulate(Recipe.model_validate(recipe), folder)
    return folder


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_owners_leave_a_whole_clip_and_come_back(run, clip, tmp_path):
    without, again = tmp_path / "without", tmp_path / "again"
    invoke("owners", "remove", run / "model", "goods", "--out", without, "--quiet")
    assert "goods" not in invoke("owners", "list", without)
    left = read_unified(without)
    assert left.encoder.model.config.expert_names == left.classes.domains == ["flowers", "pets"]

    whole = AutoModel.from_pretrained(run / "model")
    whole.set_active_experts(["flowers", "pets"])
    pixels = left.encoder.tokenise([read_picture("cat")])["pixel_values"]
    with torch.no_grad():
        expected = whole(pixel_values=pixels).image_embeds
        torch.testing.assert_close(left.encoder.model(pixel_values=pixels).image_embeds, expected)

    contribution = run / "contributions" / "goods"
    charter, pool = ["--charter", run / "charter"], ["--pool", run / "pool"]
    invoke("owners", "add", without, contribution, *charter, *pool, "--seed-model", clip, "--out", again, "--quiet")
    before, after = (load_file(folder / "model.safetensors") for folder in (run / "model", again))
    places = {"0": "0", "1": "2", "2": "1"}  # flowers, goods, pets became flowers, pets, goods
    for name, tensor in before.items():
        start, found, rest = name.partition(".experts.")
        if found:
            place, _, matrix = rest.partition(".")
            assert torch.equal(tensor, after[f"{start}.experts.{places[place]}.{matrix}"]), name


def read_picture(kind):
    return picture_of(draw(kind, 50))


def test_a_picture_is_explained_patch_by_patch(run, tmp_path):
    unified = read_unified(run / "model")
    found = explain_picture(unified.encoder, read_picture("cat"), "cat.png")
    assert found.experts == [*unified.encoder.model.config.expert_names, "seed"]
    assert (found.grid.rows, found.grid.columns, len(found.tokens)) == (4, 4, 17)
    assert all(len(stretch.steps) == 17 for stretch in found.stretches)
    write_pictures(tmp_path / "one", ["cat"], 1)
    page = tmp_path / "page.html"
    assert "pets" in invoke("explain", run / "model", tmp_path / "one", "--html", page)
    assert "pets" in page.read_text()


def finetuned(clip, folder, shift, part):
    """A copy of the whole model with one part of its tensors changed."""
    shutil.copytree(clip, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {n: t + shift if part in n else t for n, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    return folder


def test_whole_fine_tunes_of_clip_become_one_vision_tower(clip, tmp_path):
    shifts = {"pets": ("vision_model.encoder.layers.1.mlp", 0.1), "goods": ("vision_model.encoder.layers.2.mlp", -0.1)}
    folders = {name: finetuned(clip, tmp_path / name, shift, part) for name, (part, shift) in shifts.items()}
    experts = [f"{name}={folder}" for name, folder in folders.items()]
    invoke("merge", clip, *experts, "--to", tmp_path / "merged", "--quiet")
    model = AutoModel.from_pretrained(tmp_path / "merged")
    assert type(model).__name__ == "CollegiumCLIPVisionModelWithProjection"
    pixels = torch.linspace(-1, 1, 3 * 16 * 16).reshape(1, 3, 16, 16)
    for name, folder in folders.items():
        model.set_active_experts([name])
        with torch.no_grad():
            expected = CLIPVisionModelWithProjection.from_pretrained(folder)(pixel_values=pixels).image_embeds
            torch.testing.assert_close(model(pixel_values=pixels).image_embeds, expected)


def test_a_changed_text_tower_is_refused_or_left_out_knowingly(clip, tmp_path):
    pets = finetuned(clip, tmp_path / "pets", 0.1, "text_model.encoder.layers.0.mlp")
    arguments = [clip, {"pets": pets}, tmp_path / "merged"]
    with pytest.raises(IncompatibleExperts, match="pets changed 4 tensors of the text tower"):
        merge_checkpoints(*arguments)
    assert not (tmp_path / "merged").exists()
    merge_checkpoints(*arguments, shared="seed")
    assert "class names are read by the seed's" in (tmp_path / "merged" / "README.md").read_text()
