"""A checkpoint is read by its headers alone, and a folder that is not what it says is named, never half-read."""

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from collegium.unify.checkpoint import layer_prefix, read_checkpoint
from finetunes import into_shards

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(seed_folder, tmp_path):
    return shutil.copytree(seed_folder, tmp_path / "model")


def change_index(folder, change):
    content = json.loads((folder / INDEX).read_text())
    change(content["weight_map"])
    (folder / INDEX).write_text(json.dumps(content))


def fault_of(folder):
    """The only fault of a folder."""
    (fault,) = read_checkpoint(folder).faults
    return fault


@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_is_found_with_its_values(shards, folder):
    expected = load_file(folder / "model.safetensors")
    if shards > 1:
        into_shards(folder, shards)
    read = read_checkpoint(folder)
    assert read.faults == ()
    assert read.tensors.keys() == expected.keys()
    assert read.config["model_type"] == "bert"
    for name, tensor in expected.items():
        stored = read.tensors[name]
        assert torch.equal(stored.values(0, tensor.numel()).reshape(stored.shape), tensor)
        assert torch.equal(stored.values(3, 5), tensor.flatten()[3:8])


def test_buffers_of_old_versions_are_no_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "embeddings.position_ids": torch.arange(32)}, folder / "model.safetensors")
    assert read_checkpoint(folder).tensors.keys() == tensors.keys()


def test_case_10_an_index_that_names_an_absent_shard(folder):
    into_shards(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "shards that are not there: model-00002-of-00003.safetensors" in fault_of(folder)


def test_case_10_an_index_that_names_an_absent_tensor(folder):
    into_shards(folder)
    change_index(folder, lambda listed: listed.update(ghost="model-00001-of-00003.safetensors"))
    assert "not in their shards: ghost" in fault_of(folder)


@pytest.mark.parametrize("path", ["../model.safetensors", "/etc/passwd", "a\\b.safetensors", "sub/x.safetensors", ".."])
def test_case_11_a_weight_map_that_leaves_the_folder(path, folder, tmp_path):
    shutil.copyfile(folder / "model.safetensors", tmp_path / "model.safetensors")
    into_shards(folder)
    change_index(folder, lambda listed: listed.update({next(iter(listed)): path}))
    assert "outside the folder" in fault_of(folder)
    assert repr(path) in fault_of(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_case_11_a_link_in_the_folder(name, folder, tmp_path):
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    read = read_checkpoint(folder)
    assert name in read.faults[0]
    assert "links" in read.faults[0]
    assert not read.tensors


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('the pickle ran')",)


def test_case_12_a_pickle_is_never_opened(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    assert "pickles (pytorch_model.bin) may run code" in fault_of(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": "pytorch_model.bin"}}))
    assert "not safetensors: pytorch_model.bin" in fault_of(folder)


def test_a_pickle_beside_the_weights_is_left_alone(folder):
    (folder / "training_args.bin").write_bytes(pickle.dumps(Bomb()))  # what every Trainer leaves
    assert read_checkpoint(folder).faults == ()


def header_of(file):
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 15]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, -16]},
        {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]},
        {"dtype": "X9", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        7,
    ],
    ids=str,
)
def test_a_header_that_lies_is_named(entry, folder):
    header, values = header_of(folder / "model.safetensors")
    text = json.dumps({**header, "evil": entry}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + values)
    assert "malformed header" in fault_of(folder)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_file_that_was_cut_off_is_named(size, folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:size])
    assert "cut off" in fault_of(folder)


def test_a_quantised_model_is_named(folder):
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    assert "quantised" in fault_of(folder)


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_a_configuration_that_is_none_is_named(content, folder):
    (folder / "config.json").write_text(content)
    assert "config.json cannot be read" in fault_of(folder)


def test_all_faults_of_a_folder_are_told_together(folder):
    into_shards(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    (folder / "model-00001-of-00003.safetensors").write_bytes(b"")
    (folder / "config.json").unlink()
    assert len(read_checkpoint(folder).faults) == 3


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["encoder.layer.0.x"], ""),
        (["cls.weight", "bert.encoder.layer.11.x"], "bert."),
        (["a.b.encoder.layer.0.x"], "a.b."),
        (["my_encoder.layer.0.x"], ""),
    ],
)
def test_the_prefix_is_what_stands_before_the_layers(names, prefix):
    assert layer_prefix(names, "encoder.layer") == prefix
