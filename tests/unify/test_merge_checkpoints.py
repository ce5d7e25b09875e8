"""`merge`: a folder that loads with transformers alone, whose experts are the fine-tunes to the byte."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from collegium.core.errors import ArtifactError, IncompatibleExperts, InputError, RunError
from collegium.core.router_settings import RouterSettings
from collegium.models.encoder import Encoder, embed_texts
from collegium.models.expert_tensors import ffn_tensors
from collegium.models.seed_model import load_seed_model
from collegium.moe.architectures import ARCHITECTURES
from collegium.moe.modeling import UNIFIED_CLASSES
from collegium.unify import merge_checkpoints as module
from collegium.unify.merge import unified_model
from collegium.unify.merge_checkpoints import ROUTER, merge_checkpoints
from collegium.unify.unified_folder import read_unified
from families import EVERY_CLASS, answer, tiny_inputs, tiny_seed
from finetunes import finetune, into_shards, make_tiny_llama
from tiny import DOMAINS

TEXTS = ["the old cow", "a", "hull mast keel sail near far", "wheat barley oat rye the a"]


@pytest.fixture(scope="module")
def experts(seed_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    return {name: finetune(seed_folder, folder / name, random_seed=i) for i, name in enumerate(DOMAINS)}


def texts_of(domain, shift=0):
    """Texts of words that no other domain has."""
    words = [word for own in DOMAINS[domain].values() for word in own]
    return [
        " ".join(words[(start + step * i) % 8] for i in range(4))
        for start in range(8)
        for step in (1 + shift, 3 + shift)
    ]


@pytest.fixture(scope="module")
def examples():
    return {name: texts_of(name) for name in DOMAINS}


def load(folder, auto_class=AutoModel):
    model, info = auto_class.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def embeddings(model, seed):
    encoder = Encoder(model=model, tokenizer=seed.tokenizer, pooling=seed.pooling, max_length=seed.max_length)
    return torch.from_numpy(embed_texts(encoder, TEXTS))


@pytest.mark.parametrize("options", [{}, {"decide": "once", "decide_layer": 0, "fallback": True}], ids=str)
def test_the_folder_is_what_unification_in_memory_makes(options, seed, seed_folder, experts, tmp_path):
    router = RouterSettings(**{"decide": "every-layer", **options})
    merge_checkpoints(seed_folder, experts, tmp_path / "out", router)
    model = load(tmp_path / "out")
    tensors = {name: ffn_tensors(load_seed_model(str(path)), [0, 1, 2]) for name, path in experts.items()}
    expected = unified_model(seed, tensors, [0, 1, 2], router)
    for layer, own in model.routers.items():
        expected.routers[layer].load_state_dict(own.state_dict())
    state = expected.state_dict()
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(embeddings(model, seed), embeddings(expected, seed))
    expected.save_pretrained(tmp_path / "saved")
    ours, theirs = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("out", "saved"))
    assert ours == theirs
    ours, theirs = ({file.name for file in (tmp_path / name).glob("*.py")} for name in ("out", "saved"))
    assert ours == theirs


def test_copies_of_the_seed_are_the_seed(seed, seed_folder, tmp_path):
    merge_checkpoints(seed_folder, {"a": seed_folder, "b": seed_folder}, tmp_path / "out")
    torch.testing.assert_close(
        embeddings(load(tmp_path / "out"), seed), embeddings(seed.model, seed), rtol=0, atol=1e-5
    )


def test_the_folder_loads_where_the_package_is_not_installed(seed_folder, experts, tmp_path):
    merge_checkpoints(seed_folder, experts, tmp_path / "out")
    code = (
        "import sys; sys.modules['collegium'] = None\n"
        "import torch; from transformers import AutoModel, AutoTokenizer\n"
        "torch.set_num_threads(1)\n"
        "model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True).eval()\n"
        "inputs = AutoTokenizer.from_pretrained(sys.argv[1])('the old cow', return_tensors='pt')\n"
        "inputs.pop('token_type_ids', None)\n"
        "torch.save(model(**inputs).last_hidden_state, sys.argv[2])\n"
    )
    environment = {**os.environ, "PYTHONPATH": "", "HF_MODULES_CACHE": str(tmp_path / "cache")}
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "out", tmp_path / "result"], check=True, env=environment, cwd=tmp_path
    )
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")("the old cow", return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        expected = load(tmp_path / "out")(**inputs).last_hidden_state
    # The last bits of a product may depend on where in memory the file was mapped.
    torch.testing.assert_close(torch.load(tmp_path / "result"), expected, rtol=0, atol=1e-6)


def test_shards_in_and_shards_out(seed, seed_folder, experts, tmp_path):
    one = merge_checkpoints(seed_folder, experts, tmp_path / "one")
    sharded = {name: into_shards(shutil.copytree(path, tmp_path / name)) for name, path in experts.items()}
    seed_in_shards = into_shards(shutil.copytree(seed_folder, tmp_path / "seed"), 2)
    many = merge_checkpoints(seed_in_shards, sharded, tmp_path / "many", shard_bytes=50_000)
    assert len(list(many.path.glob("*.safetensors"))) > 3
    assert not (many.path / "model.safetensors").exists()
    ours, theirs = load(one.path).state_dict(), load(many.path).state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_the_same_inputs_give_the_same_artifact(seed_folder, experts, tmp_path):
    first = merge_checkpoints(seed_folder, experts, tmp_path / "first")
    assert merge_checkpoints(seed_folder, experts, tmp_path / "second").sha256 == first.sha256
    assert merge_checkpoints(seed_folder, experts, tmp_path / "third", random_seed=1).sha256 != first.sha256


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_case_7_the_dtype_is_honoured_in_bytes_and_configuration(dtype, seed_folder, experts, tmp_path):
    folder = merge_checkpoints(seed_folder, experts, tmp_path / "out", dtype=dtype).path
    tensors = load_file(folder / "model.safetensors")
    kinds = {name: tensor.dtype for name, tensor in tensors.items()}
    assert {kind for name, kind in kinds.items() if ".router." not in name} == {getattr(torch, dtype)}
    assert {kind for name, kind in kinds.items() if ".router." in name} == {torch.float32}
    assert json.loads((folder / "config.json").read_text())["dtype"] == dtype
    model = load(folder)
    assert model.encoder.layer[0].intermediate.experts[0].up_proj.weight.dtype == getattr(torch, dtype)


def test_case_6_the_card_names_what_was_cast(seed_folder, experts, tmp_path, capsys):
    half = finetune(
        seed_folder,
        tmp_path / "half",
        lambda tensors: tensors.update({name: tensor.half() for name, tensor in tensors.items()}),
    )
    folder = merge_checkpoints(seed_folder, {"farm": experts["farm"], "half": half}, tmp_path / "out").path
    note = "half: 12 tensors are cast from F16 to F32"
    assert note in (folder / "README.md").read_text()
    assert f"warning: {note}" in capsys.readouterr().err


def test_an_untrained_router_is_told_and_one_from_examples_is_not(seed_folder, experts, examples, tmp_path, capsys):
    random = merge_checkpoints(seed_folder, experts, tmp_path / "random").path
    assert "must be trained" in (random / "README.md").read_text()
    assert "must be trained" in capsys.readouterr().err
    fitted = merge_checkpoints(seed_folder, experts, tmp_path / "fitted", examples=examples).path
    assert "must be trained" not in (fitted / "README.md").read_text()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("settings", [ROUTER, RouterSettings(decide="once", decide_layer=1, init="lda")], ids=str)
def test_examples_send_texts_to_their_own_expert(settings, seed_folder, examples, tmp_path):
    experts = dict.fromkeys(DOMAINS, seed_folder)  # the seed's own experts: the routing is all that differs
    model = load(merge_checkpoints(seed_folder, experts, tmp_path / "out", settings, examples=examples).path)
    tokenizer = AutoTokenizer.from_pretrained(seed_folder)
    for index, name in enumerate(DOMAINS):
        inputs = tokenizer(texts_of(name, shift=4), padding=True, return_tensors="pt")
        output = model(inputs["input_ids"], inputs["attention_mask"], output_routing=True)
        for layer, routing in output.routings.items():
            right = (routing.experts[..., 0] == index)[inputs["attention_mask"].bool()].float().mean()
            assert right > 0.8, (name, layer)


def test_a_decoders_first_tokens_take_the_seeds_ffn_unless_told_otherwise(seed_folder, tmp_path):
    seed = make_tiny_llama(tmp_path / "seed", seed_folder)
    experts = {name: finetune(seed, tmp_path / name, random_seed=index) for index, name in enumerate(DOMAINS)}
    merged = load(merge_checkpoints(seed, experts, tmp_path / "a").path, AutoModelForCausalLM)
    assert (merged.config.warmup_tokens, merged.config.choices) == (8, [*DOMAINS, "seed"])
    ids = tiny_inputs("llama", [12])["input_ids"]
    ours = merged(ids, output_routing=True)
    chosen = next(iter(ours.routings.values())).experts[0, :, 0]
    assert chosen[:7].tolist() == [2] * 7
    assert (chosen[7:] < 2).all()
    dense = AutoModelForCausalLM.from_pretrained(seed)(ids).logits
    assert torch.allclose(ours.logits[:, :7], dense[:, :7], atol=1e-5)
    assert not torch.allclose(ours.logits[:, 7:], dense[:, 7:], atol=1e-2)

    router = ROUTER.model_copy(update={"warmup_tokens": 0})
    without = load(merge_checkpoints(seed, experts, tmp_path / "b", router).path, AutoModelForCausalLM)
    assert (without.config.warmup_tokens, without.config.choices) == (0, list(DOMAINS))
    assert len(without.state_dict()) < len(merged.state_dict())  # no seed beside the experts


def test_a_decoder_is_routed_by_examples_and_generates(seed_folder, examples, tmp_path):
    seed = make_tiny_llama(tmp_path / "seed", seed_folder)
    folders = dict.fromkeys(DOMAINS, seed)  # as above: the routing is all that differs
    router = ROUTER.model_copy(update={"warmup_tokens": 2})  # the texts are short
    artifact = merge_checkpoints(seed, folders, tmp_path / "out", router, examples=examples)
    model = load(artifact.path, AutoModelForCausalLM)
    assert (model.config.context, model.lm_head.weight is model.model.embed_tokens.weight) == ("causal", True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    right = []
    for index, name in enumerate(DOMAINS):
        inputs = tokenizer(texts_of(name, shift=4), return_tensors="pt")  # all of one length
        routings = model(inputs["input_ids"], output_routing=True).routings.values()
        right += [float((routing.experts[:, -1, 0] == index).float().mean()) for routing in routings]
    assert min(right) > 0.8
    assert model.generate(inputs["input_ids"][:1], max_new_tokens=3).shape[1] == inputs["input_ids"].shape[1] + 3


def test_a_random_router_learns(seed_folder, experts, tmp_path):
    model = load(merge_checkpoints(seed_folder, experts, tmp_path / "out").path).train()
    model(torch.tensor([[2, 5, 6, 3], [2, 9, 8, 3]])).last_hidden_state[..., 0].sum().backward()
    assert all(router.weight.grad.abs().max() > 1e-6 for router in model.routers.values())


def test_a_lora_folder_and_a_whole_fine_tune_together(seed, seed_folder, experts, tmp_path):
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    name = "encoder.layer.2.output.dense"
    factors = {f"base_model.model.{name}.lora_A.weight": torch.ones(1, 48), f"{name}.lora_B.weight": torch.ones(32, 1)}
    save_file(factors, tmp_path / "lora" / "adapter_model.safetensors")
    merge_checkpoints(seed_folder, {"whole": experts["farm"], "lora": tmp_path / "lora"}, tmp_path / "out")
    layer = load(tmp_path / "out").encoder.layer[2].intermediate.experts
    own = seed.model.encoder.layer[2].output.dense.weight
    torch.testing.assert_close(layer[1].down_proj.weight, own + 1.0)
    whole = load_file(experts["farm"] / "model.safetensors")
    assert torch.equal(layer[0].down_proj.weight, whole[f"{name}.weight"])


def test_a_seed_with_a_prefix_a_head_and_no_pooler(seed, seed_folder, experts, tmp_path):
    def masked_language_model(tensors):
        for name in list(tensors):
            tensors[f"bert.{name}"] = tensors.pop(name)
        for name in ("bert.pooler.dense.weight", "bert.pooler.dense.bias"):
            tensors.pop(name)
        tensors["cls.predictions.bias"] = torch.zeros(51)

    other = finetune(seed_folder, tmp_path / "seed", masked_language_model)
    folder = merge_checkpoints(other, {"a": other}, tmp_path / "out").path
    assert "has no cls.predictions.bias, which the seed has" in (folder / "README.md").read_text()
    assert load(folder).pooler.dense.weight.abs().max() == 0
    assert all(not name.startswith("bert.") for name in load_file(folder / "model.safetensors"))
    merge_checkpoints(seed_folder, {"a": other}, tmp_path / "seed kept", shared="seed")
    torch.testing.assert_close(
        embeddings(load(tmp_path / "seed kept"), seed), embeddings(load(folder), seed), rtol=0, atol=1e-6
    )


def test_layers_below_the_decision_are_compared_as_well(seed_folder, experts, tmp_path):
    with pytest.raises(IncompatibleExperts, match=r"farm changed 4 tensors.*encoder\.layer\.0\.intermediate"):
        merge_checkpoints(seed_folder, experts, tmp_path / "out", RouterSettings(decide="once", decide_layer=1))


def test_what_cannot_be_merged_is_an_input_error_and_leaves_nothing(seed_folder, experts, examples, tmp_path):
    def fails(match, seed=seed_folder, of=experts, **options):
        with pytest.raises(InputError, match=match) as caught:
            merge_checkpoints(seed, of, tmp_path / "out", **options)
        assert caught.value.exit_code == 2
        assert not (tmp_path / "out").exists()

    fails("Examples are needed for every expert", examples={"farm": examples["farm"]})
    fails("Examples are needed for every expert", examples={**examples, "farm": []})
    fails("cannot be read", seed=tmp_path / "nowhere")
    fails("decide_layer = 3, but the seed's layers", router=RouterSettings(decide_layer=3))
    malformed = finetune(seed_folder, tmp_path / "c", config={"hidden_size": "wide"})
    fails("configuration of the seed model .* is malformed", seed=malformed)
    fewer = finetune(seed_folder, tmp_path / "d", config={"type_vocab_size": 1})
    fails("token_type_embeddings.weight does not fit its own", seed=fewer, shared="seed", of={"a": fewer})
    fails("There is no expert to merge", of={})
    fails(
        "family that is not supported yet[\\s\\S]*gpt2",
        seed=finetune(seed_folder, tmp_path / "a", config={"model_type": "gpt2"}),
    )
    fails(
        "is_decoder = True is not supported",
        seed=finetune(seed_folder, tmp_path / "b", config={"is_decoder": True}),
        shared="seed",
    )


def test_a_tokenizer_with_code_of_its_own_is_refused(seed_folder, tmp_path):
    seed = shutil.copytree(seed_folder, tmp_path / "seed")
    config = json.loads((seed / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["evil/repository--evil.Evil", None]}
    (seed / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="brings code of its own"):
        merge_checkpoints(seed, {"a": seed_folder}, tmp_path / "out")


def test_case_21_a_merge_that_fails_half_way_leaves_nothing(seed_folder, experts, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "custom_object_save", full)
    with pytest.raises(RunError, match="No space left"):
        merge_checkpoints(seed_folder, experts, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_merged_model_is_not_taken_for_a_unified_one(seed_folder, experts, tmp_path):
    folder = merge_checkpoints(seed_folder, experts, tmp_path / "out").path
    with pytest.raises(ArtifactError, match=r"another kind of artifact[\s\S]*merged-model"):
        read_unified(folder)


@pytest.mark.parametrize(("family", "class_name"), EVERY_CLASS)
def test_every_family_is_merged_as_it_grows_in_the_table(family, class_name, tmp_path):
    seed = tiny_seed(family, class_name)
    seed.save_pretrained(tmp_path / "seed")
    folders = {name: finetune(tmp_path / "seed", tmp_path / name, random_seed=i) for i, name in enumerate("ab")}
    headless = ARCHITECTURES[family].kind == "decoder" and not class_name.endswith("ForCausalLM")
    if headless and not seed.config.tie_word_embeddings:  # the merged decoder has a head, which a bare one cannot give
        with pytest.raises(IncompatibleExperts, match=r"no lm_head\.weight, which the merged model needs"):
            merge_checkpoints(tmp_path / "seed", folders, tmp_path / "out")
        return
    out = merge_checkpoints(tmp_path / "seed", folders, tmp_path / "out").path
    config = AutoConfig.from_pretrained(out)
    model_class = UNIFIED_CLASSES[family][1]
    model, info = model_class.from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), info
    assert config.context == ("causal" if ARCHITECTURES[family].kind == "decoder" else "sequence")
    answers = answer(model.eval()(**tiny_inputs(family, [5, 3])))
    assert torch.isfinite(answers).all()
    # one expert alone is that fine-tune, whatever the router says, where no token is too early for it
    router = ROUTER.model_copy(update={"warmup_tokens": 0})
    merged = merge_checkpoints(tmp_path / "seed", {"a": folders["a"]}, tmp_path / "one", router)
    one = model_class.from_pretrained(merged.path)
    dense = type(seed).from_pretrained(folders["a"]).eval()
    inputs = tiny_inputs(family, [5, 5])
    if type(one).__name__.endswith("Model") == class_name.endswith("Model"):
        torch.testing.assert_close(answer(one.eval()(**inputs)), answer(dense(**inputs)), rtol=1e-4, atol=1e-4)


def masked_language_model(folder, seed_folder, pooler):
    """A fine-tune as BertForMaskedLM stores it: a prefix and a head, seldom a pooler."""

    def edit(tensors):
        for name in list(tensors):
            tensors[f"bert.{name}"] = tensors.pop(name)
        for name in () if pooler else ("bert.pooler.dense.weight", "bert.pooler.dense.bias"):
            tensors.pop(name)
        tensors["cls.predictions.bias"] = torch.zeros(51)

    return finetune(seed_folder, folder, edit)


@pytest.mark.parametrize("pooler", [True, False])
def test_experts_may_be_without_the_seeds_head(pooler, seed_folder, tmp_path):
    seed = masked_language_model(tmp_path / "seed", seed_folder, pooler)
    own = load_file(seed / "model.safetensors")
    bare = load_file(seed_folder / "model.safetensors")  # as saved from BertModel, which always has a pooler
    bare |= {name.removeprefix("bert."): tensor for name, tensor in own.items() if not name.startswith("cls.")}
    expert = shutil.copytree(seed_folder, tmp_path / "expert")
    save_file(bare, expert / "model.safetensors", {"format": "pt"})
    folder = merge_checkpoints(seed, {"a": expert, "b": seed}, tmp_path / "out").path
    assert "has no cls.predictions.bias, which the seed has" in (folder / "README.md").read_text()
    weight = load(folder).pooler.dense.weight
    assert torch.equal(weight, bare["pooler.dense.weight"] if pooler else torch.zeros_like(weight))


def test_a_head_of_an_expert_alone_is_dropped_and_told(seed_folder, experts, tmp_path):
    masked = masked_language_model(tmp_path / "masked", seed_folder, pooler=True)
    folder = merge_checkpoints(seed_folder, {"masked": masked, **experts}, tmp_path / "out").path
    note = "masked has 1 tensors that neither the seed nor the merged model uses, which are dropped: cls.predictions"
    assert note in (folder / "README.md").read_text()
    assert not [name for name in load_file(folder / "model.safetensors") if "cls." in name]


def test_a_tied_output_layer_may_be_stored_or_not(seed_folder, tmp_path):
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    bare = make_tiny_llama(tmp_path / "bare", seed_folder)
    stored = finetune(bare, tmp_path / "stored", lambda tensors: tensors.update({head: tensors[embedding].clone()}))
    folder = merge_checkpoints(stored, {"a": bare, "b": stored}, tmp_path / "out").path
    assert "has not" not in (folder / "README.md").read_text()
    assert head not in load_file(folder / "model.safetensors")
    assert load(folder, AutoModelForCausalLM).lm_head.weight.shape == (64, 32)
    other = finetune(bare, tmp_path / "other", lambda tensors: tensors.update({head: 2 * tensors[embedding]}))
    for seed in (bare, stored):  # no copy of the embedding: the fine-tune is another model than the tied one
        with pytest.raises(IncompatibleExperts, match=f"1 tensors that the seed has not: {head}"):
            merge_checkpoints(seed, {"other": other}, tmp_path / "refused")
