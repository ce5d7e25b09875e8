"""Owners come and go: nothing of a removed one is left in the folder, and an added one is as if it had been there."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from collegium.core.artifacts import read_artifact, writing
from collegium.core.errors import ArtifactError, InputError, InvalidContribution
from collegium.core.recipe import OwnerSettings, PoolSettings
from collegium.models.encoder import embed_texts
from collegium.models.expert_tensors import ffn_tensors
from collegium.models.seed_model import load_seed_model
from collegium.owner.charter import write_charter
from collegium.owner.contribution import write_contribution
from collegium.selection.pool import build_pool
from collegium.unify.changed_folder import change_notes
from collegium.unify.membership import add_owner, remove_owner
from collegium.unify.unified_folder import read_unified
from collegium.unify.unify import unify
from tiny import make_tiny_seed

TEXTS = ["the old cow", "a pig", "hull mast keel sail near far", "wheat barley oat rye the a", "tide"]
CLINIC, ILLS = "kzyx-clinic", ["quuxitis", "blorbosis"]  # words that stand nowhere else; between the two others
FIXED = {"joint_tuning": {"keep": "never"}, "router": {"temperature": 0.5}}


@pytest.fixture(scope="module")
def make_setup(make_recipe, pool, seed, tmp_path_factory):
    """The charter of farm, the clinic and port."""

    def make(**changes):
        recipe = make_recipe(**changes)
        owners = {
            "farm": recipe.owners["farm"],
            CLINIC: OwnerSettings(prompt=CLINIC + " treats {label}", labels=ILLS),
            "port": recipe.owners["port"],
        }
        labels = {"farm": ["animal", "plant"], CLINIC: ILLS, "port": ["ship", "sea"]}
        path = tmp_path_factory.mktemp("charter") / "charter"
        return write_charter(path, recipe.model_copy(update={"owners": owners}), seed, pool, labels)

    return make


@pytest.fixture
def make_model(make_setup, make_contribution, pool, seed, tmp_path):
    """(charter, contributions, folder) of these owners."""

    def make(*owners, charter=None, name="model", **changes):
        charter = charter or make_setup(**changes)
        paths = {owner: make_contribution(charter, owner) for owner in charter.owners}
        unify(charter, [paths[owner] for owner in owners or charter.owners], pool, seed, tmp_path / name)
        return charter, paths, tmp_path / name

    return make


def tensors(folder):
    return load_file(folder / "model.safetensors")


def same_tensors(one, other, **tolerance):
    one, other = tensors(one), tensors(other)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        torch.testing.assert_close(tensor, other[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")


LORA = {"training": {"parameters": "lora", "rank": 2, "steps": 1}}
CLASS_FILE = "class_embeddings.safetensors"
SETTINGS = [
    {},
    {"router": {"fallback": True, "init": "lda"}},
    {"router": {"decide": "every-layer", "context": "seed", "experts_per_token": 2}},
    {"output_dtype": "bfloat16"},
    LORA,
    {**LORA, "router": {"fallback": True, "experts_per_token": 2}},
]


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_removing_leaves_nothing_of_the_owner_in_any_byte(changes, make_model, tmp_path):
    _, _, folder = make_model(**changes)
    before, written = read_unified(folder), {file: file.read_bytes() for file in folder.iterdir()}
    assert any(CLINIC.encode() in content for content in written.values())
    remove_owner(folder, CLINIC, tmp_path / "rest")
    rest = read_unified(tmp_path / "rest")
    for file in (tmp_path / "rest").iterdir():
        for word in (CLINIC, *ILLS):
            assert word.encode() not in file.read_bytes(), f"{word} in {file.name}"
    # no tensor: neither a part of the expert, nor of its router rows, nor a class embedding
    left = b"".join((tmp_path / "rest" / name).read_bytes() for name in ("model.safetensors", CLASS_FILE))
    own = [tensor for name, tensor in tensors(folder).items() if ".experts.1." in name]
    own += [tensor[1] for name, tensor in tensors(folder).items() if name.endswith(".router.weight")]
    own += list(before.classes.embeddings[before.classes.of(CLINIC)])
    assert own
    assert all(tensor.contiguous().view(torch.uint8).numpy().tobytes() not in left for tensor in own)
    assert rest.classes.domains == ["farm", "port"]
    assert {file: file.read_bytes() for file in folder.iterdir()} == written  # the old model stays as it is


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_the_rest_answers_as_with_the_owner_inactive(changes, make_model, tmp_path):
    _, _, folder = make_model(**changes)
    remove_owner(folder, CLINIC, tmp_path / "rest")
    whole, rest = read_unified(folder), read_unified(tmp_path / "rest")
    assert rest.experts == [name for name in whole.experts if name != CLINIC]
    whole.encoder.model.set_active_experts(rest.experts)
    np.testing.assert_allclose(embed_texts(rest.encoder, TEXTS), embed_texts(whole.encoder, TEXTS), atol=2e-6)


@pytest.mark.parametrize("training", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("router", [{}, {"init": "lda", "fallback": True}, {"init": "raw", "decide": "every-layer"}])
def test_removing_gives_what_unifying_without_the_owner_gives(router, training, make_model, tmp_path):
    settings = {**FIXED, **training, "router": {**FIXED["router"], **router}}
    charter, _, folder = make_model(**settings)
    _, _, without = make_model("farm", "port", charter=charter, name="without")
    remove_owner(folder, CLINIC, tmp_path / "rest")
    same_tensors(tmp_path / "rest", without, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("router", [{}, {"init": "lda", "fallback": True}, {"init": "raw", "decide": "every-layer"}])
def test_adding_gives_what_unifying_with_the_owner_gives(router, training, make_model, pool, seed, tmp_path):
    settings = {**FIXED, **training, "router": {**FIXED["router"], **router}}
    charter, paths, folder = make_model("farm", CLINIC, **settings)
    _, _, together = make_model(charter=charter, name="together")
    add_owner(folder, paths["port"], charter, pool, seed, tmp_path / "more")
    same_tensors(tmp_path / "more", together, rtol=1e-5, atol=1e-6)
    more, expected = read_unified(tmp_path / "more"), read_unified(together)
    assert more.experts == expected.experts
    assert more.classes.names == expected.classes.names
    torch.testing.assert_close(more.classes.embeddings, expected.classes.embeddings, rtol=0, atol=1e-6)
    assert more.facts["prompts"] == expected.facts["prompts"]
    assert (tmp_path / "more" / "ledger.json").read_bytes() == (together / "ledger.json").read_bytes()
    card = (tmp_path / "more" / "README.md").read_text()
    assert "mixture of 3 experts" in card
    assert "joint tuning was not run again" in card
    rows = [line for line in card.splitlines() if line.startswith("| ")]
    assert rows == [line for line in (together / "README.md").read_text().splitlines() if line.startswith("| ")]


def test_a_latecomer_who_leaves_again_leaves_the_model_bit_for_bit(
    charter, make_setup, make_contribution, pool, seed, tmp_path
):
    folder = tmp_path / "model"
    unify(charter, [make_contribution(charter, owner) for owner in charter.owners], pool, seed, folder)
    later = make_setup()  # a charter that names one owner more
    add_owner(folder, make_contribution(later, CLINIC), later, pool, seed, tmp_path / "more")
    more = read_unified(tmp_path / "more")
    assert more.experts == ["farm", "port", CLINIC]
    assert more.classes.names[-2:] == tuple((CLINIC, ill) for ill in ILLS)
    assert more.artifact.inputs[f"charter:{CLINIC}"] == later.sha256
    remove_owner(tmp_path / "more", CLINIC, tmp_path / "again")
    for file in (tmp_path / "again").iterdir():
        if file.name not in ("collegium.json", "README.md", "manifest.json"):
            assert file.read_bytes() == (folder / file.name).read_bytes(), file.name
        assert CLINIC.encode() not in file.read_bytes(), file.name
    assert change_notes(read_unified(tmp_path / "again").facts) == [
        "An owner who had been added later was removed; nothing of its influence remains."
    ]


def test_owners_with_other_ranks_and_with_whole_matrices_come_and_go(
    make_setup, make_model, make_contribution, pool, seed, tmp_path
):
    _, _, folder = make_model("farm", "port", **LORA)
    rank_3 = make_setup(training={**LORA["training"], "rank": 3})
    add_owner(folder, make_contribution(rank_3, CLINIC), rank_3, pool, seed, tmp_path / "ranks")
    assert read_unified(tmp_path / "ranks").encoder.model.config.expert_ranks == [2, 2, 3]
    whole = make_setup()
    add_owner(folder, make_contribution(whole, CLINIC, name="whole"), whole, pool, seed, tmp_path / "mixed")
    assert read_unified(tmp_path / "mixed").encoder.model.config.expert_ranks == [2, 2, None]
    for name in ("ranks", "mixed"):
        remove_owner(tmp_path / name, CLINIC, tmp_path / f"{name} again")
        before, after = ((path / "model.safetensors").read_bytes() for path in (folder, tmp_path / f"{name} again"))
        assert before == after


def test_factors_become_whole_matrices_in_a_model_of_whole_matrices(
    make_setup, make_model, make_contribution, make_factors, pool, seed, tmp_path
):
    _, _, folder = make_model("farm", "port")
    lora = make_setup(**LORA)
    add_owner(folder, make_contribution(lora, CLINIC, expert=make_factors([1, 2])), lora, pool, seed, tmp_path / "more")
    assert read_unified(tmp_path / "more").encoder.model.config.expert_ranks is None
    factors, own = make_factors([1, 2]), ffn_tensors(seed, [1])["layers.1.up_proj.weight"]
    scale = lora.terms.training.lora_alpha / 2
    update = scale * factors["layers.1.up_proj.lora_B"] @ factors["layers.1.up_proj.lora_A"]
    found = tensors(tmp_path / "more")["encoder.layer.1.intermediate.experts.2.up_proj.weight"]
    torch.testing.assert_close(found, own + update)


@pytest.mark.parametrize(("keep", "words"), [("always", "tuned jointly with its proxies"), ("never", "temperature")])
def test_the_card_says_what_of_a_removed_owner_remains(keep, words, make_model, tmp_path):
    _, _, folder = make_model(joint_tuning={"keep": keep, "batch_size": 16})
    remove_owner(folder, CLINIC, tmp_path / "rest")
    card = (tmp_path / "rest" / "README.md").read_text()
    assert words in card
    assert "Only unifying the others' contributions again removes it" in card
    assert "mixture of 2 experts" in card
    assert "| farm |" in card
    assert set(json.loads((tmp_path / "rest" / "ledger.json").read_text())) == {"farm", "port"}


def test_a_name_that_others_use_as_a_word_is_said(make_model, capsys, tmp_path):
    _, _, folder = make_model()
    remove_owner(folder, CLINIC, tmp_path / "rest")
    assert "is still in" not in capsys.readouterr().err
    _, _, folder = make_model(project=CLINIC, name="named-so")
    remove_owner(folder, CLINIC, tmp_path / "rest")
    assert f"the word {CLINIC} is still in collegium.json, README.md" in capsys.readouterr().err


def test_what_cannot_be_removed_is_refused(make_model, tmp_path):
    _, _, folder = make_model(router={"experts_per_token": 2})
    with pytest.raises(InputError, match="no expert of this owner"):
        remove_owner(folder, "bakery", tmp_path / "rest")
    with pytest.raises(InputError, match="never changed in place"):
        remove_owner(folder, CLINIC, folder)
    remove_owner(folder, CLINIC, tmp_path / "rest")
    with pytest.raises(InputError, match="Too few experts would be left"):
        remove_owner(tmp_path / "rest", "farm", tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_what_must_not_be_added_is_refused(make_model, make_setup, make_contribution, pool, seed, tmp_path):
    charter, paths, folder = make_model("farm", "port")
    with pytest.raises(InvalidContribution, match="an expert of farm already"):
        add_owner(folder, paths["farm"], charter, pool, seed, tmp_path / "more")
    other = make_setup(router={"init": "raw", "fallback": True})
    path = make_contribution(other, CLINIC, name="other")
    with pytest.raises(ArtifactError, match=r"router\.fallback, router\.init differ"):
        add_owner(folder, path, other, pool, seed, tmp_path / "more")
    with pytest.raises(InvalidContribution, match="another charter"):
        add_owner(folder, path, charter, pool, seed, tmp_path / "more")
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize("changed", ["pool", "seed"])
def test_another_pool_or_seed_than_the_models_is_refused(changed, make_model, make_recipe, seed, data_folder, tmp_path):
    _, _, folder = make_model("farm", "port")
    other = seed if changed == "pool" else load_seed_model(str(make_tiny_seed(tmp_path / "seed", random_seed=1)), 16)
    rows = (data_folder / "pool.jsonl").read_text().splitlines()[:100]
    (tmp_path / "less.jsonl").write_text("\n".join(rows) + "\n")
    pool = build_pool(tmp_path / "pool", PoolSettings(data=str(tmp_path / "less.jsonl")), other, 0)
    owner = OwnerSettings(prompt="late about {label}", labels=ILLS)
    recipe = make_recipe().model_copy(update={"owners": {"late": owner}})
    charter = write_charter(tmp_path / "charter", recipe, other, pool, {"late": ILLS})
    expert, vector = ffn_tensors(other, [1, 2]), {1: np.zeros(other.dim)}
    write_contribution(tmp_path / "late", "late", charter, expert, vector, pool.hashes[:9], [])
    words = {"pool": "pool is not the one", "seed": "another seed model"}[changed]
    with pytest.raises(ArtifactError, match=words):
        add_owner(folder, tmp_path / "late", charter, pool, other, tmp_path / "more")
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize("changed", [{"shrinkage": 0.5}, {"vectors": "private"}], ids=str)
def test_a_charter_whose_rows_are_made_otherwise_is_refused(
    changed, make_model, make_setup, make_contribution, pool, seed, tmp_path
):
    _, _, folder = make_model("farm", "port")
    other = make_setup(router=changed)
    path = make_contribution(other, CLINIC, name="other")
    (name,) = changed
    with pytest.raises(ArtifactError, match=rf"router\.{name} differ"):
        add_owner(folder, path, other, pool, seed, tmp_path / "more")
    assert not (tmp_path / "more").exists()
    add_owner(without_router_settings(folder, tmp_path / "old"), path, other, pool, seed, tmp_path / "more")
    assert read_unified(tmp_path / "more").experts == ["farm", "port", CLINIC]


def without_router_settings(folder, old):
    """The model as versions wrote it that did not record how the rows were made."""
    artifact = read_artifact(folder)
    with writing(old, artifact.kind, artifact.inputs, artifact.settings) as copy:
        for file in artifact.files:
            shutil.copyfile(folder / file, copy / file)
        facts = json.loads((copy / "collegium.json").read_text())
        facts["unification"].pop("router_settings", None)
        (copy / "collegium.json").write_text(json.dumps(facts))
    return old
