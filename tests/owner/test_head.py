"""The head of task label-head: whose its rows are, what they are trained against, and what leaves of them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from collegium.core.artifacts import read_artifact, writing
from collegium.core.errors import DataError, InvalidContribution, RecipeError
from collegium.core.recipe import OwnerRecipe, TrainingSettings
from collegium.models import label_exercises
from collegium.models.encoder import embed_texts
from collegium.models.label_exercises import LabelExercises, label_targets
from collegium.models.tasks import matching_loss
from collegium.owner.charter import POOL_DOMAIN, write_charter
from collegium.owner.contribute import contribute, load_private, plan_contribution
from collegium.owner.contribution import EXPERT, HEAD, LEDGER
from collegium.owner.exercises import proxy_exercises
from collegium.owner.head import ANCHORS, head_classes, starting_rows
from collegium.owner.training import Expert, train_expert
from collegium.owner.validate import read_contribution
from collegium.privacy.release_store import ReleaseStore
from collegium.selection.pool import is_held_out
from tiny import DOMAINS, NO_OVERLAP_CHECK


@pytest.fixture(scope="module")
def head_charter(make_charter):
    return make_charter(task="label-head", training={"steps": 30, "batch_size": 16, "learning_rate": 1e-2})


@pytest.fixture(scope="module")
def owner(data_folder):
    return OwnerRecipe(name="farm", data=str(data_folder / "farm.jsonl"), privacy=NO_OVERLAP_CHECK)


@pytest.fixture(scope="module")
def contribution(tmp_path_factory, head_charter, owner, pool, seed) -> Path:
    folder = tmp_path_factory.mktemp("head")
    contribute(head_charter, owner, pool, seed, folder / "farm", ReleaseStore(folder / "store"))
    return folder / "farm"


def test_rows_start_as_class_means():
    embeddings = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    rows = starting_rows(embeddings, ["a", "b", "a"], ["b", "a"])
    assert torch.allclose(rows, torch.tensor([[0.0, 1.0], [1.6 / 3.2**0.5, 0.8 / 3.2**0.5]]))


def test_a_class_without_an_example_is_found_before_anything_is_remembered(make_recipe, owner, pool, seed, tmp_path):
    labels = {"farm": ["animal", "mineral", "plant"], "port": list(DOMAINS["port"])}
    charter = write_charter(tmp_path / "charter", make_recipe(task="label-head"), seed, pool, labels)
    with pytest.raises(DataError, match=r"none of mineral"):
        contribute(charter, owner, pool, seed, tmp_path / "farm", ReleaseStore(tmp_path / "store"))
    assert not list((tmp_path / "store").rglob("*.json"))
    with pytest.raises(DataError, match=r"none of mineral"):
        plan_contribution(charter, owner, seed)


def test_the_anchors_are_the_same_for_every_owner_and_never_held_out(head_charter, pool, seed):
    rows = torch.nn.functional.normalize(torch.randn(2, seed.dim), dim=1)
    farm = head_classes(head_charter, pool, {"farm": rows})
    both = head_classes(head_charter, pool, {"farm": rows, "port": -rows})
    assert farm.names[:2] == (("farm", "animal"), ("farm", "plant"))
    assert torch.equal(farm.embeddings[:2], rows)
    assert torch.equal(farm.embeddings[farm.of(POOL_DOMAIN)], both.embeddings[both.of(POOL_DOMAIN)])
    anchors = [value for domain, value in farm.names if domain == POOL_DOMAIN]
    assert len(anchors) == ANCHORS
    assert not any(is_held_out(value, head_charter.terms.held_out_one_in) for value in anchors)
    assert [name for name, _ in both.public().names] == ["farm", "farm", "port", "port"]


def test_a_proxy_teaches_the_seeds_similarities_and_nothing_about_rows(head_charter, pool, seed):
    rows = torch.nn.functional.normalize(torch.randn(2, seed.dim), dim=1)
    classes = head_classes(head_charter, pool, {"farm": rows})
    items = [3, 50, 90]
    exercises = proxy_exercises(head_charter, seed, pool, items, classes)
    assert isinstance(exercises, LabelExercises)
    targets = exercises.targets
    anchors = classes.of(POOL_DOMAIN)
    expected = torch.from_numpy(np.asarray(pool.embeddings[items])) @ classes.embeddings[anchors].T
    expected = (head_charter.terms.training.logit_scale * expected).softmax(dim=1)
    assert np.allclose(targets.probabilities[:, anchors], expected.numpy(), atol=1e-6)
    assert not targets.probabilities[:, :2].any()
    assert not targets.allowed[:, :2].any()
    assert (targets.allowed[:, anchors] == 1).all()


def test_rows_are_trained_and_leave_with_unit_length(head_charter, contribution, pool, seed, owner):
    head = load_file(contribution / HEAD)["rows"]
    checked = read_contribution(contribution, head_charter, pool, seed)
    assert checked.head is not None
    assert torch.equal(checked.head, head)
    assert head.shape == (2, seed.dim)
    assert torch.allclose(head.norm(dim=1), torch.ones(2), atol=1e-6)
    private = load_private(head_charter, owner)
    start = starting_rows(embed_texts(seed, private.texts), private.labels or [], ["animal", "plant"])
    assert (head * start).sum(dim=1).max() < 0.999  # they moved
    assert set(load_file(contribution / EXPERT)) == {
        f"layers.{layer}.{matrix}.{kind}"
        for layer in (1, 2)
        for matrix in ("up_proj", "down_proj")
        for kind in ("weight", "bias")
    }


def test_the_ledger_and_the_plan_name_the_rows(head_charter, contribution, owner, seed):
    entries = json.loads((contribution / LEDGER).read_bytes())
    (line,) = [entry for entry in entries if entry["file"] == HEAD]
    assert "close to the mean of its private examples" in line["reveals"]
    assert line["epsilon"] == "infinity"
    plan = plan_contribution(head_charter, owner, seed)
    assert plan.files[HEAD] == (contribution / HEAD).stat().st_size
    assert [entry.file for entry in plan.ledger].count(HEAD) == 1


def test_label_matching_has_no_head(contributions, charter, pool, seed, data_folder):
    assert not (contributions["farm"] / HEAD).exists()
    assert read_contribution(contributions["farm"], charter, pool, seed).head is None


def test_the_same_seed_gives_the_same_contribution(head_charter, contribution, owner, pool, seed, tmp_path):
    again = contribute(head_charter, owner, pool, seed, tmp_path / "farm", ReleaseStore(tmp_path / "store"))
    assert again.sha256 == read_artifact(contribution).sha256


@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_a_killed_training_ends_with_the_rows_of_an_undisturbed_one(
    head_charter, pool, seed, tmp_path, monkeypatch, parameters
):
    rows = torch.nn.functional.normalize(torch.randn(2, seed.dim, generator=torch.Generator().manual_seed(0)), dim=1)
    classes = head_classes(head_charter, pool, {"farm": rows})
    texts = ["the old cow", "a hen here", "wheat far", "an oat rye"] * 4
    targets = label_targets([0, 0, 1, 1] * 4, range(len(classes.names)), classes)
    exercises = LabelExercises(seed, texts, targets, classes)
    settings = TrainingSettings(epochs=2, batch_size=8, learning_rate=1e-2, parameters=parameters, rank=4)

    def train(checkpoints: Path | None = None) -> Expert:
        return train_expert(seed, exercises, settings, [1, 2], 0, checkpoints, head_rows=2)

    undisturbed = train()
    assert undisturbed.head is not None
    assert not torch.allclose(undisturbed.head, rows, atol=1e-3)
    steps = iter(range(100))

    def interrupted(*arguments: object) -> torch.Tensor:
        if next(steps) == 3:  # in the second epoch
            raise KeyboardInterrupt
        return matching_loss(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(label_exercises, "matching_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    assert (tmp_path / "checkpoint-2").is_dir()
    resumed = train(tmp_path)
    assert torch.equal(resumed.head, undisturbed.head)
    assert all(torch.equal(resumed.tensors[name], tensor) for name, tensor in undisturbed.tensors.items())


def spoiled(contribution: Path, folder: Path, rows: torch.Tensor | None, name: str = "rows") -> Path:
    """A copy with other rows, and a manifest that fits it."""
    path = folder / "spoiled"
    artifact = read_artifact(contribution)
    with writing(path, artifact.kind, artifact.inputs, artifact.settings) as building:
        for file in artifact.files:
            shutil.copy(contribution / file, building / file)
        if rows is None:
            (building / HEAD).unlink()
        else:
            save_file({name: rows}, building / HEAD)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:1], "head.safetensors in .* has a size that the charter does not allow"),
        (lambda rows: rows.T.contiguous(), r"rows does not fit the seed model"),
        (lambda rows: torch.full_like(rows, float("nan")), "rows holds infinite values or NaN"),
        (lambda rows: 1.5 * rows, "row 0 of the head is not of length 1"),
        (lambda rows: torch.stack([rows[0], torch.zeros_like(rows[1])]), "row 1 of the head is not of length 1"),
        (lambda rows: None, "does not hold what a contribution holds"),
    ],
)
def test_hostile_rows_are_refused(head_charter, contribution, pool, seed, tmp_path, change, message):
    path = spoiled(contribution, tmp_path, change(load_file(contribution / HEAD)["rows"]))
    with pytest.raises(InvalidContribution, match=message):
        read_contribution(path, head_charter, pool, seed)


def test_rows_under_another_name_and_rows_that_nobody_asked_for_are_refused(
    head_charter, contribution, contributions, charter, pool, seed, tmp_path
):
    rows = load_file(contribution / HEAD)["rows"]
    with pytest.raises(InvalidContribution, match="does not hold the tensors"):
        read_contribution(spoiled(contribution, tmp_path, rows, name="row"), head_charter, pool, seed)
    with pytest.raises(InvalidContribution, match="does not belong there"):
        read_contribution(spoiled(contributions["farm"], tmp_path / "other", rows), charter, pool, seed)


def test_terms_that_do_not_fit_the_task_are_refused(make_recipe, seed, pool, tmp_path):
    recipe = make_recipe(task="label-head")
    labels = {name: list(kinds) for name, kinds in DOMAINS.items()}
    owners = {name: one.model_copy(update={"publish_labels": name != "port"}) for name, one in recipe.owners.items()}
    silent = recipe.model_copy(update={"owners": owners})
    with pytest.raises(RecipeError, match=r"owners\.port\.publish_labels"):
        write_charter(tmp_path / "c", silent, seed, pool, labels)
    settings = {**pool.artifact.settings, "prompt": "{label}", "labels": ["a", "b"]}
    prompted = replace(pool, artifact=replace(pool.artifact, settings=settings))
    with pytest.raises(RecipeError, match=r"pool\.prompt says nothing"):
        write_charter(tmp_path / "c", recipe, seed, prompted, labels)
