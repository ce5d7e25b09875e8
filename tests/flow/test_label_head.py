"""The whole flow with pictures and a head, on a tiny random ViT: run, evaluate, predict."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from collegium.cli.main import app
from collegium.core.artifacts import writing
from collegium.core.errors import ArtifactError, DataError, RecipeError, ReleaseRefused
from collegium.core.recipe import OwnerRecipe, PoolSettings, Recipe
from collegium.data.examples import load_splits
from collegium.data.images import picture_of
from collegium.evaluation.explain import explain_picture
from collegium.flow.evaluate_model import evaluate_model
from collegium.flow.predict import predict_items
from collegium.flow.simulate import owner_recipe, simulate
from collegium.models.encoder import embed_texts
from collegium.owner.contribution import HEAD
from collegium.owner.overlap import find_overlap, refuse_overlap
from collegium.selection.pool import RECORDS, build_pool, read_pool, verify_pool
from collegium.unify.unified_folder import read_unified
from tiny import NO_OVERLAP_CHECK, draw, write_pictures

KINDS = {"clothes": ["bag", "shoe"], "fruit": ["apple", "pear"]}
PUBLIC = ["stone", "cloud", "lamp", "chair", "book"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of pictures for each owner, and one of public ones."""
    folder = tmp_path_factory.mktemp("pictures")
    for owner, kinds in KINDS.items():
        write_pictures(folder / owner, kinds, 30)
    write_pictures(folder / "pool", PUBLIC, 24)
    return folder


@pytest.fixture(scope="module")
def recipe(pictures, vision_seed_folder):
    owners = {owner: {"data": str(pictures / owner), "privacy": NO_OVERLAP_CHECK} for owner in KINDS}
    return Recipe.model_validate(
        {
            "project": "pictures",
            "seed_model": str(vision_seed_folder),
            "task": "label-head",
            "pool": {"data": str(pictures / "pool")},
            "owners": owners,
            "selection": {"size": 20},
            "training": {"steps": 30, "batch_size": 16, "warmup_steps": 0, "learning_rate": 1e-3},
            "joint_tuning": {"batch_size": 16},
        }
    )


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return json.loads(simulate(recipe, folder).read_text()), folder


def test_every_owner_is_answered_with_its_own_labels_among_all(run):
    summary, folder = run
    assert set(summary["accuracy"]) == {"seed", "expert:clothes", "expert:fruit", "soup", "unified", "oracle"}
    union = summary["accuracy"]["unified"]["union"]
    assert union["mean"] > 0.9  # four classes: chance is 0.25
    assert summary["routing"]["sequence"] > 0.9
    unified = read_unified(folder / "model")
    assert unified.classes.names == tuple((owner, kind) for owner in KINDS for kind in sorted(KINDS[owner]))
    heads = [load_file(folder / "contributions" / owner / HEAD)["rows"] for owner in KINDS]
    assert torch.equal(unified.classes.embeddings, torch.cat(heads))
    card = (folder / "model" / "README.md").read_text()
    assert "AutoImageProcessor" in card
    assert "image-encoder" in card


def test_the_same_recipe_gives_the_same_hashes(run, recipe, tmp_path):
    summary, _ = run
    again = json.loads(simulate(recipe, tmp_path / "again").read_text())
    assert again["hashes"] == summary["hashes"]
    assert again["accuracy"] == summary["accuracy"]


def test_an_owner_evaluates_on_its_own_pictures(run, recipe):
    summary, folder = run
    results = evaluate_model(folder / "model", [owner_recipe(recipe, owner) for owner in KINDS], "test")
    assert results["accuracy"]["union"] == summary["accuracy"]["unified"]["union"]


def test_predict_names_the_file(run, pictures):
    _, folder = run
    answers = CliRunner().invoke(app, ["predict", str(folder / "model"), str(pictures / "fruit"), "--json"])
    assert answers.exit_code == 0, answers.output
    rows = [json.loads(line) for line in answers.output.splitlines()]
    assert rows[0]["image"] == "apple/0.png"
    assert np.mean([row["label"] == row["image"].split("/")[0] for row in rows]) > 0.9
    one = CliRunner().invoke(app, ["predict", str(folder / "model"), str(pictures / "fruit" / "pear" / "3.png")])
    assert json.loads(one.output)["image"] == "3.png"
    with pytest.raises(DataError, match="does not read the data"):
        list(predict_items(read_unified(folder / "model"), ["a text"], [1]))


def test_the_seed_needs_a_head(recipe, tmp_path):
    with pytest.raises(RecipeError, match="reads no class names"):
        simulate(recipe.model_copy(update={"task": "label-matching"}), tmp_path / "run")


def test_a_pool_of_pictures_does_not_depend_on_its_source(vision_seed, pictures, tmp_path):
    settings = PoolSettings(data=str(pictures / "pool"))
    pool = build_pool(tmp_path / "pool", settings, vision_seed, random_seed=0)
    verify_pool(pool, vision_seed)
    assert (len(pool), pool.modality, pool.labels) == (120, "image", sorted(PUBLIC))
    assert pool.hashes == sorted(pool.hashes)
    assert [picture.content_hash for picture in pool.texts(range(5))] == pool.hashes[:5]
    assert np.allclose(pool.embeddings[:5], embed_texts(vision_seed, pool.texts(range(5))), atol=1e-5)
    other = write_pictures(tmp_path / "other", PUBLIC, 24)
    (other / "lamp" / "twin.png").write_bytes((other / "lamp" / "0.png").read_bytes())
    Image.open(other / "lamp" / "1.png").save(other / "lamp" / "1.bmp")
    (other / "lamp" / "1.png").unlink()
    again = build_pool(tmp_path / "again", PoolSettings(data=str(other)), vision_seed, random_seed=0)
    assert again.artifact.settings["duplicates_removed"] == 1
    assert again.hashes == pool.hashes
    assert again.artifact.files[RECORDS] == pool.artifact.files[RECORDS]


def test_a_pool_record_that_is_no_picture_or_another_one_is_found(vision_seed, pictures, tmp_path):
    pool = build_pool(tmp_path / "pool", PoolSettings(data=str(pictures / "pool")), vision_seed, random_seed=0)
    for number, bad in enumerate((b"no picture", picture_of(draw("bag", 0)).png)):
        images = pool.records["image"].to_pylist()
        images[7] = bad
        table = pool.records.set_column(0, "image", pa.array(images))
        path = tmp_path / f"bad{number}"
        with writing(path, "pool", pool.artifact.inputs, pool.artifact.settings) as folder:
            with pa.OSFile(str(folder / RECORDS), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            (folder / "embeddings.npy").write_bytes((pool.artifact.path / "embeddings.npy").read_bytes())
        with pytest.raises(ArtifactError, match=r"Row 7 of the pool"):
            verify_pool(read_pool(path, vision_seed), vision_seed)


def test_a_private_picture_in_the_pool_is_shown_to_its_owner(vision_seed, pictures, tmp_path):
    pool = build_pool(tmp_path / "pool", PoolSettings(data=str(pictures / "pool")), vision_seed, random_seed=0)
    recipe = OwnerRecipe(name="clothes", data=str(pictures / "clothes"))
    private = list(load_splits(recipe.data, recipe.columns, recipe.limits, 0, "clothes").train.texts)
    private[3] = pool.texts([11])[0]
    found = find_overlap(pool, private, embed_texts(vision_seed, private), similarity=1.0)
    assert (11, 3) in [(one.pool_row, one.private_row) for one in found]
    with pytest.raises(ReleaseRefused, match=r"a picture of 8 × 8 pixels, content hash"):
        refuse_overlap(pool, private, found)


def test_texts_may_have_a_head(make_recipe, tmp_path):
    """Any encoder may: its class names are then no sentences, and no other owner reads them."""
    changes = {"task": "label-head", "training": {"steps": 5, "batch_size": 16}}
    simulate(make_recipe(**changes), tmp_path / "run")
    unified = read_unified(tmp_path / "run" / "model")
    heads = [load_file(tmp_path / "run" / "contributions" / name / HEAD)["rows"] for name in ("farm", "port")]
    assert torch.equal(unified.classes.embeddings, torch.cat(heads))
    assert [domain for domain, _ in unified.classes.names] == ["farm", "farm", "port", "port"]
    (answer,) = predict_items(unified, ["the old cow"], [1])
    assert answer["text"] == "the old cow"


def test_explain_shows_the_patches_of_a_picture(run, pictures, tmp_path):
    model, pear = run[1] / "model", pictures / "fruit" / "pear" / "3.png"
    arguments = ["explain", str(model), str(pear), "--html", str(tmp_path / "page.html")]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert "3.png\n" in shown.output
    stretches = explain_picture(read_unified(model).encoder, picture_of(pear), "3.png").stretches
    signs = ["AB"[step.expert] for step in stretches[-1].steps]
    rows = [" ".join(signs[first : first + 4]) for first in range(1, 17, 4)]
    for row in rows:
        assert row in shown.output
    assert f"[CLS] {signs[0]} {'clothes' if signs[0] == 'A' else 'fruit'}" in shown.output
    assert "· · · ·" in shown.output  # below the decision
    page = (tmp_path / "page.html").read_text()
    assert "<h2><bdi>3.png</bdi></h2>" in page
    assert page.count("data:image/png;base64,") == 1


def test_explain_takes_a_folder_of_pictures_and_refuses_what_the_model_does_not_read(run, pictures, tmp_path):
    model = str(run[1] / "model")
    write_pictures(tmp_path / "some", ["bag"], 2)
    shown = CliRunner().invoke(app, ["explain", model, str(tmp_path / "some")], catch_exceptions=False)
    assert "bag/0.png" in shown.output
    assert "bag/1.png" in shown.output
    for source, message in (
        ("a text", "does not read the data"),
        (str(pictures / "fruit"), "at most 50"),
        ("no-such.png", "no-such.png"),
    ):
        with pytest.raises(DataError, match=message):
            CliRunner().invoke(app, ["explain", model, source], catch_exceptions=False)
