"""A contribution of an owner who is not trusted: every fault is refused by name, and nothing else can happen."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from collegium.core.artifacts import MANIFEST, canonical_json, sha256_of
from collegium.core.errors import InvalidContribution
from collegium.core.recipe import OwnerRecipe
from collegium.models.ffn_inputs import norm_bound
from collegium.owner.contribute import contribute
from collegium.owner.contribution import CARD, EXPERT, LEDGER, PROXIES, ROUTING
from collegium.owner.validate import HEADER, LARGEST_TEXT, read_contribution
from collegium.privacy.release_store import ReleaseStore
from tiny import NO_OVERLAP_CHECK

FILES = [EXPERT, ROUTING, PROXIES, LEDGER, CARD]


def reseal(path: Path, **changes: object) -> None:
    """What a hostile owner would do: make the manifest fit the files, so that only deeper checks can help."""
    manifest = json.loads((path / MANIFEST).read_bytes()) | changes
    for name in manifest["files"]:
        file = path / name
        if file.is_file():
            manifest["files"][name] = {"sha256": sha256_of(file), "bytes": file.stat().st_size}
    (path / MANIFEST).write_bytes(canonical_json(manifest))


def change_tensors(path: Path, file: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path / file)
    change(tensors)
    save_file(tensors, path / file)
    reseal(path)


def write_json(path: Path, file: str, value: object) -> None:
    (path / file).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    reseal(path)


@pytest.fixture
def path(contributions, tmp_path) -> Path:
    return Path(shutil.copytree(contributions["farm"], tmp_path / "hostile"))


@pytest.fixture
def read(charter, pool, seed):
    return lambda path: read_contribution(path, charter, pool, seed)


@pytest.fixture
def refuse(read):
    def check(path: Path, *culprits: str) -> None:
        with pytest.raises(InvalidContribution) as raised:
            read(path)
        assert raised.value.exit_code == 2
        for culprit in culprits:
            assert culprit in str(raised.value)

    return check


def test_an_honest_contribution_is_read_and_resealing_alone_changes_nothing(path, read, contributions, pool):
    honest = read(contributions["farm"])
    assert honest.owner == "farm"
    assert {pool.hashes[row] for row in honest.proxy_rows} == set(json.loads((path / PROXIES).read_bytes()))
    assert honest.ledger == json.loads((path / LEDGER).read_bytes())
    reseal(path)
    assert read(path).artifact.sha256 == honest.artifact.sha256


@pytest.mark.parametrize("name", ["run.py", "model.bin", "model.pt", ".hidden", "inner/expert.safetensors", "inner"])
def test_case_12_a_file_that_does_not_belong_there_is_refused(path, refuse, name):
    (path / name).parent.mkdir(exist_ok=True)
    if name == "inner":
        (path / name).mkdir()
    else:
        (path / name).write_bytes(pickle.dumps({"a": 1}))
    refuse(path, name.split("/", maxsplit=1)[0], "does not belong there")


@pytest.mark.parametrize("name", [EXPERT, ROUTING])
def test_case_12_a_pickle_under_the_name_of_a_safetensors_file_is_refused_and_not_run(path, refuse, tmp_path, name):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "it ran",)

    size = (path / name).stat().st_size
    (path / name).write_bytes(pickle.dumps(Bomb()).ljust(size, b"\x00"))
    reseal(path)
    refuse(path, name)
    assert not (tmp_path / "it ran").exists()


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_case_11_links_are_refused_even_to_equal_content(path, refuse, tmp_path, name):
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    refuse(path, name, "link")


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/hostname", "inner/../../secret", "x" * 300, "\ud800", CARD + "\x00"]
)
def test_case_11_a_manifest_that_names_other_files_is_refused(path, refuse, tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["files"][name] = {"sha256": sha256_of(b"secret"), "bytes": 6}
    (path / MANIFEST).write_text(json.dumps(manifest))
    refuse(path, "is no contribution")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(path, refuse, name):
    (path / name).unlink()
    refuse(path, name)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_the_manifest_leaves_out_is_refused(path, refuse, name):
    manifest = json.loads((path / MANIFEST).read_bytes())
    del manifest["files"][name]
    (path / MANIFEST).write_bytes(canonical_json(manifest))
    refuse(path, "does not hold what a contribution holds")


@pytest.mark.parametrize("name", FILES)
def test_a_folder_or_a_pipe_in_the_place_of_a_file_is_refused(path, refuse, name):
    (path / name).unlink()
    (path / name).mkdir()
    refuse(path)
    (path / name).rmdir()
    os.mkfifo(path / name)
    refuse(path)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"[" * 1_000_000, b'{"files":' * 100_000, b"\xff" * 10])
def test_a_malformed_manifest_is_refused(path, refuse, raw):
    (path / MANIFEST).write_bytes(raw)
    refuse(path, MANIFEST)


def test_the_path_must_be_a_folder(contributions, refuse, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(contributions["farm"])
    for name in ("file", "link", "missing"):
        refuse(tmp_path / name, name, "no folder")


def test_another_kind_of_artifact_is_refused(pool, charter, refuse):
    for artifact in (pool.artifact, charter.artifact):
        refuse(artifact.path)


def test_a_contribution_under_another_charter_is_refused(path, make_charter, pool, seed, charter):
    other = make_charter(random_seed=1)
    with pytest.raises(InvalidContribution, match="another charter") as raised:
        read_contribution(path, other, pool, seed)
    assert charter.sha256 in str(raised.value)
    assert other.sha256 in str(raised.value)


@pytest.mark.parametrize("owner", ["nobody", "", None, 3, ["farm"], "farm\x1b[2J"])
def test_an_unknown_owner_is_refused(path, refuse, owner):
    reseal(path, settings={"owner": owner, "project": "tiny"})
    refuse(path, "whom the charter does not name", repr(owner))


@pytest.mark.parametrize("charter_hash", [None, 3, ["x"], {"a": 1}, ""])
def test_a_charter_hash_of_another_type_is_refused(path, refuse, charter_hash):
    reseal(path, inputs={"charter": charter_hash})
    refuse(path, "another charter" if charter_hash == "" else "malformed")


NAME = "layers.1.up_proj.weight"


def swap_shape(tensors):
    tensors[NAME] = tensors[NAME].T.contiguous()


TENSOR_FAULTS = {
    "missing": (EXPERT, lambda tensors: tensors.update({"x": tensors.pop(NAME)}), [NAME, "'x'"]),
    "extra": (EXPERT, lambda tensors: tensors.update({"layers.0.up_proj.weight": torch.zeros(1)}), ["layers.0.up"]),
    "shape": (EXPERT, swap_shape, [NAME, "(32, 48)", "(48, 32)"]),
    "integers": (EXPERT, lambda tensors: tensors.update({NAME: tensors[NAME].int()}), [NAME, "I32"]),
    "nan": (EXPERT, lambda tensors: tensors[NAME][3, 5].fill_(torch.nan), [NAME, "NaN"]),
    "infinity": (EXPERT, lambda tensors: tensors[NAME][3, 5].fill_(-torch.inf), [NAME, "infinite"]),
    "other layer": (ROUTING, lambda tensors: tensors.update({"layers.2": tensors.pop("layers.1")}), ["layers.1"]),
    "longer": (ROUTING, lambda tensors: tensors.update({"layers.1": torch.zeros(33)}), ["layers.1", "(33,)"]),
    "matrix": (ROUTING, lambda tensors: tensors.update({"layers.1": tensors["layers.1"][None]}), ["layers.1"]),
    "infinite vector": (ROUTING, lambda tensors: tensors["layers.1"][0].fill_(torch.inf), ["layers.1", "infinite"]),
    "nan vector": (ROUTING, lambda tensors: tensors["layers.1"][0].fill_(torch.nan), ["layers.1", "NaN"]),
    "inflated vector": (ROUTING, lambda tensors: tensors["layers.1"].mul_(50), ["layer 1", "longer than any text"]),
    "largest vector": (ROUTING, lambda tensors: tensors["layers.1"].fill_(3e38), ["layer 1", "longer than any text"]),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_case_20_a_faulty_tensor_is_refused_by_name(path, refuse, fault):
    file, change, culprits = TENSOR_FAULTS[fault]
    change_tensors(path, file, change)
    refuse(path, *culprits)


def test_case_20_finite_lora_factors_with_an_infinite_product_are_refused(
    tmp_path, make_charter, pool, seed, data_folder
):
    charter = make_charter(training={"parameters": "lora", "rank": 2, "epochs": 1})
    recipe = OwnerRecipe(name="farm", data=str(data_folder / "farm.jsonl"), privacy=NO_OVERLAP_CHECK)
    contribute(charter, recipe, pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "store"))
    read_contribution(tmp_path / "out", charter, pool, seed)
    change_tensors(tmp_path / "out", EXPERT, lambda tensors: [tensor.fill_(1e30) for tensor in tensors.values()])
    with pytest.raises(InvalidContribution, match=r"layers\.1\.\w+_proj give infinite weights"):
        read_contribution(tmp_path / "out", charter, pool, seed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_refused(path, refuse, dtype):
    change_tensors(path, EXPERT, lambda tensors: tensors.update({k: v.to(dtype) for k, v in tensors.items()}))
    refuse(path, NAME if dtype == torch.float64 else EXPERT)  # the smaller ones fail by size alone


def test_one_tensor_of_another_dtype_is_refused_by_name_though_the_size_is_right(path, refuse):
    """float64 of half the rows has as many bytes as float32."""
    change_tensors(path, EXPERT, lambda tensors: tensors.update({NAME: tensors[NAME][:24].double()}))
    refuse(path, NAME, "F64 (24, 32)")


def test_a_vector_as_long_as_texts_can_make_it_is_still_accepted(path, read, refuse, seed):
    bound = norm_bound(seed, seed.architecture, 1)

    def lengthen(factor):
        change_tensors(path, ROUTING, lambda tensors: tensors["layers.1"].mul_(factor / tensors["layers.1"].norm()))

    lengthen(bound)
    assert np.linalg.norm(read(path).routing[1]) == pytest.approx(bound)
    lengthen(bound * 1.01)
    refuse(path, "longer than any text")


@pytest.mark.parametrize("name", [EXPERT, ROUTING])
@pytest.mark.parametrize("length", [2, HEADER, 1 << 40, (1 << 64) - 1])
def test_a_safetensors_header_of_a_wrong_length_is_refused(path, refuse, name, length):
    content = (path / name).read_bytes()
    (path / name).write_bytes(length.to_bytes(8, "little") + content[8:])
    reseal(path)
    refuse(path, name)


@pytest.mark.parametrize("name", [EXPERT, ROUTING])
def test_size_bombs_are_refused_before_they_are_read(path, refuse, name):
    os.truncate(path / name, 1 << 30)  # sparse
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["files"][name]["bytes"] = 1 << 30
    (path / MANIFEST).write_bytes(canonical_json(manifest))
    refuse(path, name, "size that the charter does not allow")


@pytest.mark.parametrize("name", [PROXIES, LEDGER, CARD])
def test_text_bombs_are_refused_before_they_are_read(path, refuse, name):
    os.truncate(path / name, 1 << 30)
    refuse(path, name, "too large", str(LARGEST_TEXT))


@pytest.mark.parametrize("name", [EXPERT, ROUTING])
def test_a_truncated_safetensors_file_is_refused(path, refuse, name):
    os.truncate(path / name, (path / name).stat().st_size - 4)
    refuse(path, name)
    reseal(path)
    refuse(path, name)


@pytest.mark.parametrize("name", FILES)
def test_a_byte_changed_after_sealing_is_refused(path, refuse, name):
    content = bytearray((path / name).read_bytes())
    content[-5] ^= 1
    (path / name).write_bytes(content)
    refuse(path, name, "changed")


def proxy_faults(pool, honest: list[str]) -> dict[str, object]:
    others = [value for value in pool.hashes if value not in honest]
    return {
        "not in the pool": sorted([*honest[:-1], "f" * 32]),
        "duplicated": sorted([*honest[:-1], honest[0]]),
        "unsorted": honest[::-1],
        "too many": sorted([*honest, others[0]]),
        "none": [],
        "no list": {"hashes": honest},
        "no strings": [1, 2],
        "null": None,
        "a string": "abc",
        "upper case": sorted(value.upper() for value in honest),
        "no JSON": b"[",
        "no UTF-8": b'["\xff"]',
        "deep": b"[" * 500_000,
        "huge number": b"[" + b"9" * 100_000 + b"]",
        "surrogate": b'["\\ud800"]',
    }


@pytest.mark.parametrize("fault", list(proxy_faults(type("Empty", (), {"hashes": ["a", "b", "z"]}), ["a", "b"])))
def test_faulty_proxies_are_refused(path, refuse, pool, fault):
    honest = json.loads((path / PROXIES).read_bytes())
    write_json(path, PROXIES, proxy_faults(pool, honest)[fault])
    refuse(path, PROXIES if fault not in ("not in the pool", "upper case", "surrogate") else "not in the pool")


@pytest.mark.parametrize(
    "value", [{}, None, [1], ["x"], [{"what": 1}], [{"what": {"a": "b"}}], b"[" * 500_000, b"\xff", b"", b"[{]"]
)
def test_a_malformed_ledger_is_refused(path, refuse, value):
    write_json(path, LEDGER, value)
    refuse(path, LEDGER)


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from([*FILES, MANIFEST]),
    place=st.floats(0, 1, exclude_max=True),
    near_the_front=st.booleans(),
    action=st.sampled_from(["flip", "truncate", "insert", "fill"]),
    value=st.integers(1, 255),
    sealed_again=st.booleans(),
)
def test_damage_anywhere_is_refused_or_harmless_and_never_crashes(
    tmp_path_factory, contributions, charter, pool, seed, name, place, near_the_front, action, value, sealed_again
):
    path = Path(shutil.copytree(contributions["port"], tmp_path_factory.mktemp("fuzz") / "hostile"))
    content = bytearray((path / name).read_bytes())
    size = min(len(content), 400) if near_the_front else len(content)
    at = int(place * size)
    if action == "flip":
        content[at] ^= value
    elif action == "truncate":
        del content[at:]
    elif action == "insert":
        content[at:at] = bytes([value]) * value
    else:
        content[at : at + 8] = bytes([value]) * len(content[at : at + 8])
    (path / name).write_bytes(content)
    if sealed_again and name != MANIFEST:
        reseal(path)
    try:
        read = read_contribution(path, charter, pool, seed)
    except InvalidContribution:
        return
    # Only what an honest owner could have sent as well may pass: other values, another card, another ledger text.
    assert sealed_again or name == MANIFEST or content == (contributions["port"] / name).read_bytes()
    assert all(torch.isfinite(tensor).all() for tensor in read.expert.values())
    assert all(np.isfinite(vector).all() for vector in read.routing.values())
    assert 1 <= len(read.proxy_rows) <= charter.terms.selection.size
    assert read.owner in charter.owners
