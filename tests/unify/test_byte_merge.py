"""Writing without loading: the same bytes, in files that other programs read, in little memory, or not at all."""

import json
import tracemalloc

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from collegium.core.artifacts import writing
from collegium.core.errors import InputError, RunError
from collegium.unify import byte_merge
from collegium.unify.byte_merge import Average, Constant, Output, write_outputs
from collegium.unify.checkpoint import read_header


def stored(folder, **tensors):
    """Tensors saved in a file, and read back by its header."""
    save_file(tensors, folder / "source.safetensors")
    return read_header(folder / "source.safetensors", [])


@pytest.fixture
def target(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_bytes_are_copied_whatever_the_size_of_a_block(block, tmp_path, target, monkeypatch):
    monkeypatch.setattr(byte_merge, "BLOCK", block)
    tensors = {
        "a": torch.randn(5, 3),
        "b": torch.randn(3).to(torch.bfloat16),
        "empty": torch.empty(0, 4),
        "ids": torch.arange(3),
        "scalar": torch.tensor(2.5),
    }
    tensors["a"][0, 0] = float("nan")  # copying judges nothing
    read = stored(tmp_path, **tensors)
    write_outputs(target, [Output(f"new.{name}", read[name].dtype, read[name]) for name in reversed(tensors)])
    written = load_file(target / "model.safetensors")
    assert written.keys() == {f"new.{name}" for name in tensors}
    for name, tensor in tensors.items():
        own = written[f"new.{name}"]
        assert (own.dtype, own.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(own.view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))


def test_the_file_is_one_that_transformers_takes(tmp_path, target):
    read = stored(
        tmp_path, half=torch.ones(3, dtype=torch.float16), single=torch.ones(5), double=torch.ones(1).double()
    )
    write_outputs(target, [Output(name, tensor.dtype, tensor) for name, tensor in read.items()])
    with safe_open(target / "model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    for name, tensor in read_header(target / "model.safetensors", []).items():
        assert tensor.start % {"half": 2, "single": 4, "double": 8}[name] == 0


def test_a_large_model_is_written_in_shards_with_an_index(tmp_path, target):
    read = stored(tmp_path, **{f"t{index}": torch.full((100,), float(index)) for index in range(7)})
    write_outputs(target, [Output(name, "F32", tensor) for name, tensor in sorted(read.items())], shard_bytes=1000)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)]
    assert index["metadata"]["total_size"] == 2800
    for name, file in index["weight_map"].items():
        assert (target / file).stat().st_size < 1500
        assert torch.equal(load_file(target / file)[name], torch.full((100,), float(name[1:])))


@pytest.mark.parametrize("values", [1, 3, 100])
def test_a_cast_is_torchs_own(values, tmp_path, target, monkeypatch):
    monkeypatch.setattr(byte_merge, "VALUES", values)
    tensor = torch.randn(7, 2)
    write_outputs(target, [Output("x", "BF16", stored(tmp_path, x=tensor)["x"])])
    assert torch.equal(load_file(target / "model.safetensors")["x"], tensor.to(torch.bfloat16))


def test_an_average_is_summed_in_float32(tmp_path, target):
    # in bfloat16, 1 + 2⁻⁹ is 1: the average of these would be 1 as well
    small = torch.full((4,), 2.0**-6, dtype=torch.bfloat16)
    read = stored(tmp_path, a=torch.ones(4, dtype=torch.bfloat16), b=small, c=torch.full((4,), 0.5))
    write_outputs(target, [Output("x", "F32", Average([read["a"], read["b"], read["c"]]))])
    assert torch.allclose(load_file(target / "model.safetensors")["x"], torch.full((4,), (1.5 + 2.0**-6) / 3))


def test_a_constant_keeps_its_shape(target):
    write_outputs(
        target, [Output("weight", "F32", Constant(torch.eye(3))), Output("t", "F32", Constant(torch.ones(())))]
    )
    written = load_file(target / "model.safetensors")
    assert torch.equal(written["weight"], torch.eye(3))
    assert written["t"].shape == ()


def test_a_value_that_the_dtype_cannot_hold_is_refused(tmp_path):
    read = stored(tmp_path, x=torch.tensor([1.0, 70000.0]))
    with (
        pytest.raises(InputError, match=r"x holds values that F16 cannot represent[\s\S]*7e\+04[\s\S]*bfloat16"),
        writing(tmp_path / "model", "merged-model", {}, {}) as folder,
    ):
        write_outputs(folder, [Output("x", "F16", read["x"])])
    assert [file.name for file in tmp_path.iterdir()] == ["source.safetensors"]


def test_memory_is_a_few_blocks(tmp_path, target):
    read = stored(tmp_path, x=torch.zeros(12 << 20))  # 48 MiB
    tracemalloc.start()
    write_outputs(target, [Output(f"x{index}", "F32", read["x"]) for index in range(3)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * byte_merge.BLOCK


def test_case_22_a_disk_that_is_too_small_is_told_before_writing(tmp_path, monkeypatch):
    read = stored(tmp_path, x=torch.zeros(100))
    usage = byte_merge.shutil.disk_usage(tmp_path)._replace(free=399)
    monkeypatch.setattr(byte_merge.shutil, "disk_usage", lambda _: usage)
    with (
        pytest.raises(RunError, match=r"399 bytes free[\s\S]*400 bytes"),
        writing(tmp_path / "model", "merged-model", {}, {}) as folder,
    ):
        write_outputs(folder, [Output("x", "F32", read["x"])])
    assert [file.name for file in tmp_path.iterdir()] == ["source.safetensors"]


def test_case_22_a_disk_that_fills_while_writing_leaves_nothing(tmp_path, monkeypatch):
    read = stored(tmp_path, x=torch.zeros(100))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(byte_merge, "_write_all", full)
    with pytest.raises(RunError, match="No space left"), writing(tmp_path / "model", "merged-model", {}, {}) as folder:
        write_outputs(folder, [Output("x", "F32", read["x"])])
    assert [file.name for file in tmp_path.iterdir()] == ["source.safetensors"]


def test_a_source_that_shrinks_while_it_is_copied_is_an_error(tmp_path, target):
    read = stored(tmp_path, x=torch.zeros(100))
    (tmp_path / "source.safetensors").write_bytes((tmp_path / "source.safetensors").read_bytes()[:-8])
    with pytest.raises(OSError, match="became shorter"):
        write_outputs(target, [Output("x", "F32", read["x"])])
