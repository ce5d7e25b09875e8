"""A context that is dropped is made up for by tuning, and what is still lost is told as it is."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModelForCausalLM, AutoTokenizer

from collegium.core.errors import InputError
from collegium.core.recipe import PoolSettings
from collegium.core.router_settings import RouterSettings
from collegium.selection.pool import build_pool, is_held_out
from collegium.unify.export import AGREEMENT, export_model
from collegium.unify.export_gguf import export_gguf
from collegium.unify.merge_checkpoints import merge_checkpoints
from collegium.unify.token_router import imitating_rows
from families import tiny_inputs, tiny_seed, tiny_unified
from finetunes import finetune, make_tiny_llama
from tiny import POOL_WORDS, make_texts

TARGETS = {"mistral": "mixtral", "qwen2": "qwen2-moe", "qwen3": "qwen3-moe", "olmo2": "flexolmo"}
CASES = [
    ("mistral", {"decide": "once", "context": "causal"}),
    ("mistral", {"decide": "every-layer", "context": "seed", "fallback": True}),
    ("qwen2", {"decide": "every-layer", "context": "causal", "experts_per_token": 2, "weighting": "softmax"}),
    ("qwen3", {"decide": "once", "context": "causal", "decide_layer": 2, "warmup_tokens": 4}),
    ("olmo2", {"decide": "every-layer", "context": "causal", "experts_per_token": 2}),
]


@pytest.fixture(scope="module")
def pool(seed, tmp_path_factory):
    """More texts than the tests of other files need: the routers have 32 numbers a row to learn."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [json.dumps({"text": text}) for text in make_texts(POOL_WORDS, 600, "tuning")]
    (folder / "texts.jsonl").write_text("\n".join(rows))
    return build_pool(folder / "pool", PoolSettings(data=str(folder / "texts.jsonl")), seed, 0)


@pytest.fixture
def unified(seed_folder, tmp_path):
    """A folder with a tokenizer, and a router that the target cannot express."""

    def write(family, **options):
        model = tiny_unified(tiny_seed(family), noise=0.3, steepness=2.0, **options)
        for router in model.routers.values():
            router.context_weight.data.fill_(0.9)
            router.bias.data.add_(torch.linspace(-0.5, 0.5, len(router.bias)))
        model.save_pretrained(tmp_path / "unified")
        AutoTokenizer.from_pretrained(seed_folder).save_pretrained(tmp_path / "unified")
        return tmp_path / "unified"

    return write


def agreement_of(artifact):
    return json.loads((artifact.path / AGREEMENT).read_bytes())


def mean(agreement, which):
    return np.mean([share[which] for share in agreement["layers"].values()])


@pytest.mark.parametrize(("family", "options"), CASES, ids=str)
def test_tuning_agrees_more_than_dropping_and_the_figures_are_those_of_the_exported_model(
    family, options, unified, pool, tmp_path
):
    path = unified(family, **options)
    artifact = export_model(path, TARGETS[family], tmp_path / "out", pool)
    told = agreement_of(artifact)
    assert mean(told, "retuned") > mean(told, "dropped") + 0.05
    assert told["next_token"]["retuned"] > told["next_token"]["dropped"]
    first = options.get("decide_layer", 1) if options["decide"] == "once" else 0
    assert list(told["layers"]) == [str(layer) for layer in range(first, 3)]
    assert sum(told["expert_shares"].values()) == pytest.approx(1.0)

    exact = AutoModelForCausalLM.from_pretrained(path).eval()
    exported = AutoModelForCausalLM.from_pretrained(artifact.path).eval()
    tokenizer = AutoTokenizer.from_pretrained(artifact.path)
    texts = pool.texts([row for row, value in enumerate(pool.hashes) if is_held_out(value, 10)])
    same = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        same.append((exact(ids).logits.argmax(-1) == exported(ids).logits.argmax(-1)).flatten())
    assert torch.cat(same).float().mean().item() == pytest.approx(told["next_token"]["retuned"], abs=1e-6)
    assert len(torch.cat(same)) == told["judged_tokens"]

    card = (artifact.path / "README.md").read_text()
    assert "**It is not the same model**" in card
    assert f"after {told['next_token']['retuned']:.1%}" in card
    assert artifact.inputs["pool"] == pool.artifact.sha256


def test_layers_below_the_decision_are_exact_whatever_the_router(unified, pool, tmp_path):
    """With experts that are all the seed, every router is right, and the export is the seed."""
    path = unified("qwen3", decide="once", context="causal", decide_layer=2)
    seed = tiny_seed("qwen3").eval()
    model = tiny_unified(seed, noise=0.0, decide="once", context="causal", decide_layer=2)
    model.save_pretrained(path)
    exported = AutoModelForCausalLM.from_pretrained(export_model(path, "qwen3-moe", tmp_path / "out", pool).path)
    inputs = tiny_inputs("qwen3", [12, 12])
    expected = seed(**inputs).logits
    assert (exported(**inputs).logits - expected).abs().max() < 1e-5 * expected.abs().max()


def test_the_seed_of_a_warm_up_becomes_an_expert_of_its_own(unified, pool, tmp_path):
    path = unified("mistral", decide="every-layer", context="causal", warmup_tokens=4)
    artifact = export_model(path, "mixtral", tmp_path / "out", pool)
    config = json.loads((artifact.path / "config.json").read_text())
    assert config["expert_names"] == ["owner-0", "owner-1", "owner-2", "seed"]
    assert config["num_local_experts"] == 4
    told = agreement_of(artifact)
    lengths = [len(ids) for ids in AutoTokenizer.from_pretrained(path)(pool.texts(range(len(pool))))["input_ids"]]
    held_out = [is_held_out(value, 10) for value in pool.hashes]
    early = sum(min(length, 3) for length, out in zip(lengths, held_out, strict=True) if out)
    assert told["expert_shares"]["seed"] == pytest.approx(early / told["judged_tokens"])
    assert told["experts"]["seed"]["retuned"] > told["experts"]["seed"]["dropped"]


def test_a_merged_decoder_with_the_default_router_can_be_exported(seed_folder, pool, tmp_path):
    seed = make_tiny_llama(tmp_path / "seed", seed_folder)
    experts = {name: finetune(seed, tmp_path / name, random_seed=index) for index, name in enumerate("ab")}
    examples = {name: pool.texts(range(index * 40, index * 40 + 40)) for index, name in enumerate("ab")}
    merge_checkpoints(seed, experts, tmp_path / "merged", examples=examples)
    told = agreement_of(export_model(tmp_path / "merged", "mixtral", tmp_path / "out", pool))
    assert mean(told, "retuned") > mean(told, "dropped")


def test_the_exportable_preset_of_a_merged_decoder_needs_no_dropping(seed_folder, pool, tmp_path):
    seed = make_tiny_llama(tmp_path / "seed", seed_folder)
    experts = {name: finetune(seed, tmp_path / name, random_seed=index) for index, name in enumerate("ab")}
    examples = {name: pool.texts(range(index * 40, index * 40 + 40)) for index, name in enumerate("ab")}
    router = RouterSettings.model_validate({"preset": "exportable", "experts_per_token": 1})
    merge_checkpoints(seed, experts, tmp_path / "merged", router, examples=examples)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    inputs = tiny_inputs("llama", [12, 9])
    used = {int(e) for r in merged(**inputs, output_routing=True).routings.values() for e in r.experts.unique()}
    assert used == {0, 1}
    exported = AutoModelForCausalLM.from_pretrained(export_model(tmp_path / "merged", "mixtral", tmp_path / "out").path)
    real = inputs["attention_mask"].bool()
    ours, theirs = merged(**inputs).logits[real], exported(**inputs).logits[real]
    assert (ours - theirs).abs().max() < 1e-5 * ours.abs().max()


def test_what_fits_is_exported_exactly_although_dropping_is_allowed(unified, pool, tmp_path, capsys):
    path = unified("mistral", decide="every-layer", context="token")
    model = AutoModelForCausalLM.from_pretrained(path)
    for router in model.routers.values():
        router.bias.data.zero_()
        router.centre.data.zero_()
    model.save_pretrained(path)
    allowed = export_model(path, "mixtral", tmp_path / "a", pool)
    assert "nothing is dropped" in capsys.readouterr().err
    assert allowed.sha256 == export_model(path, "mixtral", tmp_path / "b").sha256
    assert AGREEMENT not in allowed.files


def test_the_same_model_and_pool_give_the_same_bytes(unified, pool, tmp_path):
    path = unified("qwen3", decide="once", context="causal")
    first, again = (export_model(path, "qwen3-moe", tmp_path / name, pool) for name in "ab")
    assert first.sha256 == again.sha256


def test_a_gguf_file_holds_the_tuned_routers(unified, pool, tmp_path):
    gguf = pytest.importorskip("gguf")
    path = unified("qwen3", decide="once", context="causal")
    artifact = export_gguf(path, tmp_path / "gguf", pool)
    export_model(path, "qwen3-moe", tmp_path / "out", pool)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    found = {one.name: one.data for one in gguf.GGUFReader(artifact.path / "model.gguf").tensors}
    np.testing.assert_array_equal(found["blk.2.ffn_gate_inp.weight"], exported["model.layers.2.mlp.gate.weight"])
    assert agreement_of(artifact)["layers"].keys() == {"1", "2"}


@pytest.mark.parametrize(
    ("family", "to", "options", "helps"),
    [
        ("mistral", "mixtral", {"decide": "once", "context": "causal"}, True),
        ("mistral", "mixtral", {"decide": "every-layer", "context": "causal", "weighting": "softmax"}, False),
        ("qwen2", "qwen2-moe", {"decide": "once", "context": "causal", "weighting": "softmax"}, False),
        ("gemma", "mixtral", {"decide": "once", "context": "causal"}, False),
    ],
)
def test_a_refusal_names_drop_context_where_it_helps_and_only_there(
    family, to, options, helps, unified, pool, tmp_path
):
    path = unified(family, **options)
    with pytest.raises(InputError) as raised:
        export_model(path, to, tmp_path / "out")
    assert ("--drop-context --pool POOL" in str(raised.value)) == helps
    if not helps:
        with pytest.raises(InputError, match=r"router\.weighting = softmax|no target continues it"):
            export_model(path, to, tmp_path / "out", pool)
    assert not (tmp_path / "out").exists()


def test_a_pool_that_cannot_tune_and_a_model_without_tokenizer_are_refused(unified, pool, seed, tmp_path):
    path = unified("qwen3", decide="once", context="causal")
    (tmp_path / "small.jsonl").write_text('{"text": "a cow"}\n{"text": "a pig"}\n')
    small = build_pool(tmp_path / "small", PoolSettings(data=str(tmp_path / "small.jsonl")), seed, 0)
    with pytest.raises(InputError, match=r"cannot tune[\s\S]*2 text items, \d of them"):
        export_model(path, "qwen3-moe", tmp_path / "out", small)
    for file in path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match="has no tokenizer"):
        export_model(path, "qwen3-moe", tmp_path / "out", pool)


def test_an_expert_that_nothing_goes_to_is_warned_of(unified, pool, tmp_path, capsys):
    path = unified("qwen3", decide="once", context="causal")
    model = AutoModelForCausalLM.from_pretrained(path)
    for router in model.routers.values():
        router.bias.data[1] = -1e4
    model.save_pretrained(path)
    told = agreement_of(export_model(path, "qwen3-moe", tmp_path / "out", pool))
    assert told["experts"]["owner-1"] is None
    assert "no held-out text of the pool goes to owner-1" in capsys.readouterr().err


def clouds(sizes, spread, dim=12):
    """Tokens around one direction for each expert, with what they have in common (a bias folds into it)."""
    generator = np.random.default_rng(0)
    directions = generator.normal(size=(len(sizes), dim))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    inputs = directions[labels] + spread * generator.normal(size=(len(labels), dim))
    return np.hstack([inputs, np.ones((len(labels), 1))]).astype(np.float32), labels


def test_rows_imitate_a_linear_router_in_choice_and_in_probability():
    generator = np.random.default_rng(1)
    rows, inputs = generator.normal(size=(3, 16)), generator.normal(size=(4000, 16)).astype(np.float32)
    scores = inputs @ rows.T
    wanted = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    hard = np.eye(3)[scores.argmax(axis=1)]
    chosen = (inputs[2000:] @ imitating_rows(inputs[:2000], hard[:2000]).T).argmax(axis=1)
    assert (chosen == scores[2000:].argmax(axis=1)).mean() > 0.97
    found = inputs[2000:] @ imitating_rows(inputs[:2000], wanted[:2000]).T
    found = np.exp(found) / np.exp(found).sum(axis=1, keepdims=True)
    assert np.abs(found - wanted[2000:]).mean() < 0.02


def test_an_expert_that_seldom_comes_is_not_forgotten_as_a_plain_fit_forgets_it():
    inputs, labels = clouds([2000, 40], spread=2.0)
    ours = (inputs @ imitating_rows(inputs, np.eye(2)[labels]).T).argmax(axis=1)
    plain = LogisticRegression(C=1e3, fit_intercept=False, max_iter=1000).fit(inputs, labels).predict(inputs)
    seldom = labels == 1
    assert (ours[seldom] == 1).mean() > (plain[seldom] == 1).mean() + 0.2
    assert (ours == labels).mean() > (plain == labels).mean() - 0.03


def test_a_dimension_that_is_always_zero_and_an_expert_without_tokens_do_no_harm():
    inputs, labels = clouds([50, 50], spread=0.1)
    inputs[:, 3] = 0.0
    rows = imitating_rows(inputs, np.eye(3)[labels])
    assert np.isfinite(rows).all()
    assert ((inputs @ rows.T).argmax(axis=1) == labels).all()
