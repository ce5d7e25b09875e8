"""Owners come and go in models of every task, from real contributions: `label-head` and the tasks of decoders."""

import json

import pytest
import torch
from safetensors.torch import load_file

from collegium.core.recipe import OwnerRecipe, Recipe
from collegium.flow.simulate import make_charter
from collegium.models.choices import Choices
from collegium.models.seed_model import load_seed_model
from collegium.owner.contribute import contribute
from collegium.owner.contribution import HEAD
from collegium.privacy.release_store import ReleaseStore
from collegium.selection.pool import build_pool
from collegium.unify.membership import add_owner, remove_owner
from collegium.unify.unified_folder import read_unified
from collegium.unify.unify import unify
from tiny import DOMAINS, NO_OVERLAP_CHECK, make_texts

CLINIC, ILLS = "kzyx-clinic", ["quuxitis", "blorbosis"]  # words that stand nowhere else; between the two others
OWNERS = ["farm", CLINIC, "port"]
ASKED = "kzyxquestion {text} Answer: {label}"
TASKS = ["label-head", "causal-choice", "causal-text"]
FORMS = {"full": {"steps": 2}, "lora": {"steps": 2, "parameters": "lora", "rank": 2}}
# peft asks transformers for an attribute that has a new name; neither is ours.


class Setup:
    """Charter and contributions of three owners, and models of some of them."""

    def __init__(self, folder, recipe):
        self.folder, self.task = folder, recipe.task
        self.seed = load_seed_model(recipe.seed_model, recipe.max_length)
        self.pool = build_pool(folder / "pool", recipe.pool, self.seed, recipe.random_seed)
        self.charter = make_charter(folder / "charter", recipe, self.seed, self.pool)
        self.contributions = {owner: folder / owner for owner in OWNERS}
        for owner, path in self.contributions.items():
            own = OwnerRecipe(name=owner, data=str(recipe.owners[owner].data), privacy=recipe.owners[owner].privacy)
            contribute(self.charter, own, self.pool, self.seed, path, ReleaseStore(folder / "stores" / owner))

    def unify(self, *owners):
        path = self.folder / "-".join(("of", *owners))
        unify(self.charter, [self.contributions[owner] for owner in owners], self.pool, self.seed, path)
        return path

    def add(self, model, owner, destination):
        add_owner(model, self.contributions[owner], self.charter, self.pool, self.seed, destination)
        return destination


@pytest.fixture(scope="module", params=[(task, form) for task in TASKS for form in FORMS], ids="-".join)
def setup(request, seed_folder, decoder_folder, data_folder, tmp_path_factory):
    task, form = request.param
    folder = tmp_path_factory.mktemp("membership")
    rows = [
        {"text": text, "label": ill}
        for ill, words in zip(ILLS, (["cow", "hull"], ["oat", "foam"]), strict=True)
        for text in make_texts(words, 15, ill)
    ]
    (folder / "clinic.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {name: str(data_folder / f"{name}.jsonl") for name in DOMAINS} | {CLINIC: str(folder / "clinic.jsonl")}
    owners = {name: {"data": data[name], "privacy": NO_OVERLAP_CHECK} for name in OWNERS}
    if task == "causal-choice":
        owners[CLINIC]["prompt"] = ASKED
    recipe = {
        "project": "members",
        "seed_model": str(seed_folder if task == "label-head" else decoder_folder),
        "task": task,
        "max_length": 20,
        "pool": {"data": str(data_folder / "pool.jsonl")},
        "owners": owners,
        "selection": {"size": 20},
        "training": {"batch_size": 16, "warmup_steps": 0, **FORMS[form]},
        "joint_tuning": {"keep": "never"},
        "router": {"temperature": 0.5},
    }
    return Setup(folder, Recipe.model_validate(recipe))


def tensors(folder):
    return load_file(folder / "model.safetensors")


def same_model(one, other):
    """The same tensors (a router's rows to float precision), names, classes, prompts and ledger."""
    first, second = tensors(one), tensors(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        exact = {} if ".router." in name else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(tensor, second[name], **exact, msg=lambda text, name=name: f"{name}: {text}")
    one, other = read_unified(one), read_unified(other)
    assert one.experts == other.experts
    assert one.classes.names == other.classes.names
    assert one.encoder.model.config.expert_ranks == other.encoder.model.config.expert_ranks
    for owner in one.encoder.model.config.expert_names:
        assert one.facts["prompts"][owner] == other.facts["prompts"][owner]
    if isinstance(one.classes, Choices):
        assert one.classes.prompts == other.classes.prompts
    else:
        assert torch.equal(one.classes.embeddings, other.classes.embeddings)
    ledgers = [json.loads((model.artifact.path / "ledger.json").read_bytes()) for model in (one, other)]
    assert ledgers[0] == ledgers[1]


def test_removing_leaves_no_tensor_class_prompt_ledger_line_or_name(setup, tmp_path):
    folder = setup.unify(*OWNERS)
    whole = read_unified(folder)
    assert len(whole.classes.of(CLINIC)) == (0 if setup.task == "causal-text" else 2)
    remove_owner(folder, CLINIC, tmp_path / "rest")
    left = {file.name: file.read_bytes() for file in (tmp_path / "rest").iterdir()}
    for word in (CLINIC, *ILLS, "kzyx"):
        found = [name for name, content in left.items() if word.encode() in content]
        assert found == [], word
    before = tensors(folder)
    own = [tensor for name, tensor in before.items() if ".experts.1." in name]
    own += [tensor[1] for name, tensor in before.items() if name.endswith(".router.weight")]
    if setup.task == "label-head":
        own += list(load_file(setup.contributions[CLINIC] / HEAD)["rows"])
        kept = b"".join(left[name] for name in ("model.safetensors", "class_embeddings.safetensors"))
    else:
        kept = left["model.safetensors"]
    assert len(own) > 2
    assert all(tensor.contiguous().view(torch.uint8).numpy().tobytes() not in kept for tensor in own)
    rest = read_unified(tmp_path / "rest")
    assert rest.encoder.model.config.expert_names == ["farm", "port"]
    assert rest.classes.domains == ([] if setup.task == "causal-text" else ["farm", "port"])


def test_removing_gives_the_model_that_unifying_the_others_gives(setup, tmp_path):
    remove_owner(setup.unify(*OWNERS), CLINIC, tmp_path / "rest")
    without = setup.unify("farm", "port")
    first, second = tensors(tmp_path / "rest"), tensors(without)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], msg=lambda text, name=name: f"{name}: {text}")


def test_adding_gives_the_model_that_unifying_with_the_owner_gives(setup, tmp_path):
    same_model(setup.add(setup.unify("farm", CLINIC), "port", tmp_path / "more"), setup.unify(*OWNERS))


def test_who_left_and_comes_back_brings_the_same_tensors(setup, tmp_path):
    remove_owner(setup.unify(*OWNERS), "port", tmp_path / "without")
    same_model(setup.add(tmp_path / "without", "port", tmp_path / "again"), setup.unify(*OWNERS))
    card = (tmp_path / "again" / "README.md").read_text()
    assert "mixture of 3 experts" in card
    assert len([line for line in card.splitlines() if line.startswith("| port |")]) == 1
