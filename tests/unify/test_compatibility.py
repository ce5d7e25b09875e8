"""Every difference between fine-tunes is found before any work, and named together with the others."""

import json
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from collegium.core.errors import IncompatibleExperts
from collegium.moe.architectures import ARCHITECTURES
from collegium.unify import compatibility
from collegium.unify.byte_merge import write_outputs
from collegium.unify.checkpoint import read_checkpoint
from collegium.unify.compatibility import check_experts
from collegium.unify.current_names import current_name, renamed
from collegium.unify.merge_checkpoints import read_expert
from collegium.unify.moe_layout import ffn_of, moe_outputs
from collegium.unify.whole_clip import merged_class
from finetunes import finetune, make_tiny_llama

LLAMA, BERT = ARCHITECTURES["llama"], ARCHITECTURES["bert"]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
UP_PROJ = "model.layers.1.mlp.up_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def llama(tmp_path_factory, seed_folder):
    return make_tiny_llama(tmp_path_factory.mktemp("llama") / "seed", seed_folder)


@pytest.fixture
def check(tmp_path):
    """Notes of the check of experts against a seed; keyword arguments are `finetune`'s, for each expert."""

    def run(seed_folder, shared="refuse", dtype="F32", architecture=LLAMA, **experts):
        rename = current_name(AutoConfig.from_pretrained(seed_folder), merged_class(read_checkpoint(seed_folder)))
        seed = renamed(read_checkpoint(seed_folder), rename)
        read = {}
        for index, (name, made) in enumerate(experts.items()):
            folder = made if not isinstance(made, dict) else finetune(
                seed_folder, tmp_path / name, random_seed=index, **made
            )  # fmt: skip
            read[name] = read_expert(folder, seed, rename)
        return check_experts(seed, read, ffn_of(seed, architecture), shared, dtype)

    return run


def merged_names(folder, seed_folder, experts, shared="refuse", dtype="F32"):
    """Write the merged tensors of a Llama without routers; name → tensor."""
    seed = read_checkpoint(seed_folder)
    read = {name: read_expert(path, seed, str) for name, path in experts.items()}
    folder.mkdir()
    write_outputs(folder, moe_outputs(seed, read, LLAMA, ffn_of(seed, LLAMA), {}, dtype, shared, False))
    return load_file(folder / "model.safetensors")


def test_fine_tunes_of_the_feed_forward_networks_fit(check, llama):
    assert check(llama, a={}, b={}) == []


def test_case_1_a_tied_seed_stays_tied(llama, tmp_path):
    merged = merged_names(tmp_path / "out", llama, {"a": finetune(llama, tmp_path / "a")})
    assert HEAD not in load_file(llama / "model.safetensors")
    assert HEAD not in merged
    assert merged[EMBEDDING].shape == (64, 32)


def test_case_1_a_tied_copy_of_the_embedding_is_no_difference(check, llama):
    assert check(llama, a={"edit": lambda t: t.update({HEAD: t[EMBEDDING].clone()})}) == []
    with pytest.raises(IncompatibleExperts, match=f"1 tensors that the seed has not: {HEAD}"):
        check(llama, b={"edit": lambda t: t.update({HEAD: 2 * t[EMBEDDING]})})


def test_case_2_tied_and_untied_experts(check, llama, tmp_path, seed_folder):
    untied = make_tiny_llama(tmp_path / "untied", seed_folder, tied=False)
    with pytest.raises(IncompatibleExperts, match="b: tie_word_embeddings is False, the seed's is True") as caught:
        check(llama, a={}, b=untied)
    assert HEAD in str(caught.value)
    with pytest.raises(IncompatibleExperts, match="tie_word_embeddings is True, the seed's is False"):
        check(untied, c=finetune(llama, tmp_path / "tied"))


def test_case_3_another_vocabulary_size(check, llama, tmp_path, seed_folder):
    larger = make_tiny_llama(tmp_path / "larger", seed_folder, rows=72)
    with pytest.raises(IncompatibleExperts, match=r"b: vocab_size is 72, the seed's is 64 \(a row") as caught:
        check(llama, a={}, b=larger)
    assert f"{EMBEDDING} has shape [72, 32], the seed's has [64, 32]" in str(caught.value)


@pytest.mark.parametrize("file", ["tokenizer.json", "added_tokens.json"])
def test_case_4_tokens_added_beyond_the_embedding(file, check, llama, tmp_path):
    folder = finetune(llama, tmp_path / "added")
    if file == "tokenizer.json":
        content = json.loads((folder / file).read_text())
        content["added_tokens"].append({**content["added_tokens"][0], "content": "<sick>", "id": 64})
    else:
        content = {"<sick>": 64}
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(
        IncompatibleExperts, match=r"added's tokenizer has 1 tokens beyond the 64 rows.*'<sick>' = 64; train again"
    ):
        check(llama, a={}, added=folder)


def test_case_4_a_token_within_the_embedding_is_told(check, llama, tmp_path):
    folder = finetune(llama, tmp_path / "added")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "content": "<sick>", "id": 60})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (note,) = check(llama, added=folder)
    assert "added's tokenizer is not the seed's, which is kept; it differs in '<sick>'" in note


def test_case_5_padded_rows_of_the_embedding_are_kept(llama, tmp_path):
    tokens = json.loads((llama / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(tokens) < 64
    merged = merged_names(tmp_path / "out", llama, {"a": finetune(llama, tmp_path / "a")})
    assert torch.equal(merged[EMBEDDING], load_file(llama / "model.safetensors")[EMBEDDING])


def halved(dtype):
    return lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})


def test_case_6_what_is_cast_is_named(check, llama):
    notes = check(llama, dtype="F16", a={"edit": halved(torch.float16)}, b={"edit": halved(torch.bfloat16)})
    assert [note.split(":")[0] for note in notes] == ["the seed model", "b"]
    assert "6 tensors are cast from BF16 to F16: model.layers.0.mlp.down_proj.weight" in notes[1]


def test_case_6_a_shared_tensor_is_compared_in_the_experts_dtype(check, llama):
    def changed(tensors):
        halved(torch.bfloat16)(tensors)
        tensors[QUERY][0, 0] = 0.0

    with pytest.raises(IncompatibleExperts, match=f"b changed 1 tensors outside the feed-forward networks: {QUERY}"):
        check(llama, a={"edit": halved(torch.bfloat16)}, b={"edit": changed})


def test_case_7_the_dtype_asked_for_is_written(llama, tmp_path):
    merged = merged_names(tmp_path / "out", llama, {"a": finetune(llama, tmp_path / "a")}, dtype="BF16")
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}
    source = load_file(tmp_path / "a" / "model.safetensors")[UP_PROJ]
    assert torch.equal(merged["model.layers.1.mlp.experts.0.up_proj.weight"], source.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "'rope_theta': 500000.0"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}}, "'factor': 2.0"),
        ({"rms_norm_eps": 1e-4}, "rms_norm_eps is 0.0001, the seed's is 1e-06"),
    ],
    ids=["theta", "scaling", "epsilon"],
)
def test_case_8_other_positions_are_a_named_error(change, words, check, llama):
    with pytest.raises(IncompatibleExperts) as caught:
        check(llama, a={}, b={"config": change})
    assert "b: " in str(caught.value)
    assert words in str(caught.value)
    assert "a: " not in str(caught.value)


def test_case_8_an_old_spelling_of_the_same_positions_is_no_difference(check, llama, tmp_path):
    folder = finetune(llama, tmp_path / "old")
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config))
    assert check(llama, old=folder) == []


def test_case_9_a_missing_matrix_is_found_in_under_a_second(check, llama, monkeypatch):
    for reading in ("equal", "finite"):  # without reading any values, so that the size of the model does not count
        monkeypatch.setattr(compatibility, reading, lambda *_: pytest.fail("values were read"))
    start = time.perf_counter()
    with pytest.raises(IncompatibleExperts, match=rf"b: {UP_PROJ} \(layer 1, up_proj\) is missing"):
        check(llama, a={}, b={"edit": lambda tensors: tensors.pop(UP_PROJ)})
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_case_20_a_value_that_is_not_finite_is_named_with_its_tensor(value, dtype, check, llama):
    def poison(tensors):
        halved(dtype)(tensors)
        tensors[UP_PROJ][-1, -1] = value

    with pytest.raises(IncompatibleExperts, match=f"for 1 reason:\\s+b's {UP_PROJ} holds infinite values or NaN"):
        check(llama, a={}, b={"edit": poison})


def test_case_20_the_largest_values_are_finite(check, llama):
    def extreme(tensors):
        halved(torch.float16)(tensors)
        tensors[UP_PROJ][0, :2] = torch.tensor([65504.0, -65504.0])

    assert "cast from F16" in check(llama, a={"edit": extreme})[0]


def test_case_20_a_seed_that_is_not_finite_is_named(check, llama, tmp_path):
    poisoned = finetune(llama, tmp_path / "seed", lambda tensors: tensors[QUERY][0].fill_(float("nan")))
    with pytest.raises(IncompatibleExperts, match=f"the seed model's {QUERY} holds infinite values or NaN"):
        check(poisoned, shared="seed", a=llama)


def test_other_widths_layers_and_families_are_named(check, llama, tmp_path, seed_folder):
    def narrow(tensors):
        tensors[UP_PROJ] = tensors[UP_PROJ][:40]

    with pytest.raises(IncompatibleExperts) as caught:
        check(llama, a={"edit": narrow, "config": {"intermediate_size": 40}}, b=seed_folder)
    for words in (
        "a: intermediate_size is 40, the seed's is 48",
        f"a: {UP_PROJ} (layer 1, up_proj) has shape [40, 32], the seed's has [48, 32]",
        "b: model_type is bert, the seed's is llama",
    ):
        assert words in str(caught.value)


def changed_attention(tensors):
    tensors[QUERY] = tensors[QUERY] + 1.0
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 2.0


def test_more_than_the_feed_forward_networks_changed(check, llama, tmp_path):
    with pytest.raises(IncompatibleExperts, match=f"a changed 2 tensors .*{QUERY}, model.norm.weight") as caught:
        check(llama, a={"edit": changed_attention}, b={})
    assert "--shared average" in str(caught.value)
    for shared, fate in (("average", "they are averaged"), ("seed", "the seed's are kept")):
        (note,) = check(llama, shared=shared, **{"a": tmp_path / "a", "b": tmp_path / "b"})
        assert "a changed 2 tensors" in note
        assert fate in note


def test_shared_tensors_are_averaged_or_the_seeds(llama, tmp_path):
    experts = {"a": finetune(llama, tmp_path / "a", changed_attention), "b": finetune(llama, tmp_path / "b")}
    own = load_file(llama / "model.safetensors")
    averaged = merged_names(tmp_path / "average", llama, experts, "average")
    torch.testing.assert_close(averaged[QUERY], own[QUERY] + 0.5)
    torch.testing.assert_close(averaged["model.norm.weight"], own["model.norm.weight"] * 1.5)
    kept = merged_names(tmp_path / "seed", llama, experts, "seed")
    assert torch.equal(kept[QUERY], own[QUERY])
    for merged in (averaged, kept):
        for index, name in enumerate("ab"):
            expected = load_file(experts[name] / "model.safetensors")[UP_PROJ]
            assert torch.equal(merged[f"model.layers.1.mlp.experts.{index}.up_proj.weight"], expected)


def test_a_head_of_its_own_is_refused_or_dropped(check, llama):
    head = {"edit": lambda tensors: tensors.update({"score.weight": torch.ones(2, 32)})}
    with pytest.raises(IncompatibleExperts, match="a has 1 tensors that the seed has not: score.weight"):
        check(llama, a=head)
    (note,) = check(llama, shared="seed", b=head)
    assert "dropped: score.weight" in note


def test_another_prefix_is_no_difference(check, seed_folder):
    def prefixed(tensors):
        for name in list(tensors):
            tensors[f"bert.{name}"] = tensors.pop(name)

    assert check(seed_folder, architecture=BERT, a={"edit": prefixed}, b={}) == []


def test_faults_of_all_experts_are_told_together(check, llama, tmp_path):
    broken = shutil.copytree(llama, tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    positions = {"rope_parameters": {"rope_theta": 2e4, "rope_type": "default"}}
    with pytest.raises(IncompatibleExperts, match="for 4 reasons") as caught:
        check(
            llama,
            a={"config": positions, "edit": lambda tensors: tensors.update({"score.weight": torch.ones(2, 32)})},
            b={"edit": lambda tensors: tensors.pop(UP_PROJ)},
            broken=broken,
        )
    for words in (
        "rope_theta",
        "tensors that the seed has not",
        "is missing",
        "broken has neither",
        "not compared yet",
    ):
        assert words in str(caught.value)
    with pytest.raises(IncompatibleExperts, match="for 2 reasons") as caught:
        check(llama, c={"edit": changed_attention}, d={"edit": lambda tensors: tensors[UP_PROJ].fill_(float("inf"))})
    for words in ("c changed 2 tensors", f"d's {UP_PROJ} holds infinite values"):
        assert words in str(caught.value)
