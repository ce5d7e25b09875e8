"""The folder of a unified model: complete, readable again, refused once it was changed."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from collegium.core.artifacts import MANIFEST, canonical_json, sha256_of
from collegium.core.errors import ArtifactError
from collegium.core.router_settings import RouterSettings
from collegium.models.encoder import Encoder, embed_texts
from collegium.models.expert_tensors import full_expert
from collegium.models.tasks import class_set
from collegium.owner.validate import read_contribution
from collegium.unify.merge import unified_model
from collegium.unify.unified_folder import read_unified, write_unified

DOMAINS = {"farm": ("a {label}", ["cow", "wheat"]), "port": ("the {label}", ["hull", "wave"])}

FACTS = {"joint_tuning": {"kept": False}, "flags": []}
TEXTS = ["the old cow", "a pig", "hull mast keel sail near far"]


@pytest.fixture(scope="module")
def written(charter, contributions, pool, seed, tmp_path_factory):
    """(model, classes, folder) of a model with a fallback."""
    checked = [read_contribution(path, charter, pool, seed) for path in contributions.values()]
    experts = {one.owner: full_expert(seed, one.expert, charter.terms.training) for one in checked}
    model = unified_model(seed, experts, [1, 2], RouterSettings(fallback=True))
    for router in model.routers.values():
        router.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    classes = class_set(
        seed, {"farm": ("a {label}", ["cow", "wheat"]), "port": ("the {label}", ["hull", "wave"])}, 20.0
    )
    folder = tmp_path_factory.mktemp("unified") / "model"
    write_unified(folder, model, seed, classes, charter, checked, FACTS)
    return model, classes, folder


@pytest.fixture
def copied(written, tmp_path):
    return shutil.copytree(written[2], tmp_path / "copy")


def seal_again(folder):
    """Make the manifest fit the files, as a forger would."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"] = {
        file.name: {"sha256": sha256_of(file), "bytes": file.stat().st_size}
        for file in folder.iterdir()
        if file.name != MANIFEST
    }
    (folder / MANIFEST).write_bytes(canonical_json(manifest))


def test_what_is_written_is_read_again_bit_for_bit(written, seed, charter):
    model, classes, folder = written
    unified = read_unified(folder)
    state = unified.encoder.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert unified.classes.names == classes.names
    assert torch.equal(unified.classes.embeddings, classes.embeddings)
    assert (unified.encoder.pooling, unified.encoder.max_length) == (seed.pooling, seed.max_length)
    assert unified.experts == ["farm", "port", "seed"]
    assert unified.facts["unification"] == FACTS
    assert unified.facts["prompts"] == {"farm": "farm about {label}", "port": "port about {label}"}
    own = Encoder(model=model, tokenizer=seed.tokenizer, pooling=seed.pooling, max_length=seed.max_length)
    np.testing.assert_array_equal(embed_texts(unified.encoder, TEXTS), embed_texts(own, TEXTS))


def test_a_moved_folder_is_the_same_model(copied, written):
    assert read_unified(copied).artifact.sha256 == read_unified(written[2]).artifact.sha256


def test_the_folder_names_its_inputs_and_what_every_owner_released(written, charter, contributions):
    _, _, folder = written
    artifact = read_unified(folder).artifact
    assert artifact.inputs["charter"] == charter.sha256
    assert set(artifact.inputs) == {"charter", "contribution:farm", "contribution:port"}
    ledger = json.loads((folder / "ledger.json").read_text())
    for owner, path in contributions.items():
        assert ledger[owner] == json.loads((path / "ledger.json").read_text())
    card = (folder / "README.md").read_text()
    assert all(text in card for text in ("| farm |", "| port |", "routing vectors", "trust_remote_code"))


def test_the_folder_carries_the_code_that_loads_it_and_no_pickle(written):
    _, _, folder = written
    names = {file.name for file in folder.iterdir()}
    assert {"modeling.py", "layer.py", "router.py", "experts.py", "context.py", "architectures.py"} <= names
    assert {file.suffix for file in folder.iterdir()} <= {".py", ".json", ".safetensors", ".md"}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "modeling.py", "collegium.json", "ledger.json"])
def test_a_changed_file_is_refused(name, copied):
    content = bytearray((copied / name).read_bytes())
    content[-2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=f"{name} in .* was changed"):
        read_unified(copied)


def test_a_missing_file_is_refused(copied):
    (copied / "class_embeddings.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"class_embeddings\.safetensors is missing"):
        read_unified(copied)


def test_another_kind_of_artifact_is_refused(charter, tmp_path):
    with pytest.raises(ArtifactError, match="another kind of artifact"):
        read_unified(charter.artifact.path)
    with pytest.raises(ArtifactError, match="no artifact of Collegium"):
        read_unified(tmp_path)


def test_code_in_the_folder_is_never_run(copied, tmp_path):
    for file in copied.glob("*.py"):
        file.write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')\n")
    seal_again(copied)
    read_unified(copied)
    assert not (tmp_path / "it ran").exists()


def test_a_configuration_that_asks_for_its_own_code_is_refused(copied, tmp_path):
    (copied / "evil.py").write_text(
        f"open({str(tmp_path / 'it ran')!r}, 'w')\nfrom transformers import BertConfig, BertModel\n"
        "class C(BertConfig):\n    model_type = 'evil'\nclass M(BertModel):\n    config_class = C\n"
    )
    config = json.loads((copied / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.M"}}
    (copied / "config.json").write_text(json.dumps(config))
    seal_again(copied)
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        read_unified(copied)
    assert not (tmp_path / "it ran").exists()


@pytest.mark.parametrize("name", ["collegium.json", "config.json"])
def test_a_malformed_but_sealed_file_is_refused(name, copied):
    (copied / name).write_text("{")
    seal_again(copied)
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        read_unified(copied)


def test_a_sealed_folder_without_class_embeddings_inside_is_refused(copied):
    save_file({"other": torch.zeros(1)}, copied / "class_embeddings.safetensors")
    seal_again(copied)
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        read_unified(copied)


def test_all_routers_are_in_the_file_as_float32(written):
    tensors = load_file(written[2] / "model.safetensors")
    routers = {name for name in tensors if ".router." in name}
    assert {name.rpartition(".")[2] for name in routers} == {
        "weight",
        "bias",
        "centre",
        "context_weight",
        "temperature",
    }
    assert {tensors[name].dtype for name in routers} == {torch.float32}
