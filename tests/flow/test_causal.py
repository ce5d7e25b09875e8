"""The whole flow with a decoder, on a tiny random Llama: multiple choice and language modelling."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from collegium.cli.main import app
from collegium.core.errors import InputError, RecipeError
from collegium.flow.evaluate_model import evaluate_model
from collegium.flow.predict import predict_items
from collegium.flow.simulate import owner_recipe, simulate
from collegium.owner.charter import read_charter
from collegium.unify.unified_folder import read_unified
from tiny import DOMAINS, NO_OVERLAP_CHECK, POOL_WORDS, make_texts

TEXTS = ["the old cow", "hull mast keel", "one two"]
# peft asks transformers for an attribute that has a new name; neither is ours.


@pytest.fixture(scope="module")
def run(make_causal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "choice"
    simulate(make_causal(), folder)
    return folder


@pytest.fixture(scope="module")
def text_run(make_causal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "text"
    lora = {"parameters": "lora", "rank": 8, "steps": 40, "batch_size": 16, "learning_rate": 1e-2, "warmup_steps": 0}
    # most texts are shorter than the default warm-up
    simulate(make_causal("causal-text", training=lora, router={"warmup_tokens": 0}), folder)
    return folder


def test_choices_are_learnt_and_routed(run):
    summary = json.loads((run / "summary.json").read_bytes())
    accuracy = summary["accuracy"]
    assert list(accuracy) == ["seed", "expert:farm", "expert:port", "soup", "unified", "oracle"]
    assert accuracy["oracle"]["union"]["mean"] > accuracy["seed"]["union"]["mean"] + 0.2
    assert accuracy["unified"]["union"]["mean"] > accuracy["seed"]["union"]["mean"] + 0.05
    assert set(summary["routing"]["by_layer"]) == {"1"}
    assert "causal-choice" in (run / "report.html").read_text()


def test_the_same_recipe_gives_the_same_hashes(run, make_causal, tmp_path):
    simulate(make_causal(), tmp_path / "again")
    first, second = (json.loads((path / "summary.json").read_bytes()) for path in (run, tmp_path / "again"))
    assert first["hashes"] == second["hashes"]


def test_the_unified_model_is_a_decoder_that_generates(run):
    unified = read_unified(run / "model")
    assert type(unified.encoder.model).__name__ == "CollegiumLlamaForCausalLM"
    assert unified.encoder.model.config.context == "causal"
    inputs = unified.encoder.tokenizer("the old cow\nAnswer:", return_tensors="pt")
    written = unified.encoder.model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert written.shape[1] > inputs["input_ids"].shape[1]
    assert not (run / "model" / "class_embeddings.safetensors").exists()


def test_predictions_are_probabilities_of_the_answers(run):
    answers = list(predict_items(read_unified(run / "model"), TEXTS, [1, 2, 3]))
    assert [answer["text"] for answer in answers] == TEXTS
    assert all(0 < answer["probability"] <= 1 for answer in answers)
    assert all(sum(answer["experts"].values()) == pytest.approx(1, abs=1e-3) for answer in answers)
    told = list(predict_items(read_unified(run / "model"), TEXTS, [1, 2, 3], domain="port"))
    assert {answer["domain"] for answer in told} == {"port"}


def test_evaluation_apart_gives_the_figures_of_the_run(run, make_causal):
    recipe = make_causal()
    found = evaluate_model(run / "model", [owner_recipe(recipe, name) for name in DOMAINS], "test")
    summary = json.loads((run / "summary.json").read_bytes())
    assert found["accuracy"] == summary["accuracy"]["unified"]
    assert found["routing"] == summary["routing"]


def test_an_owner_with_private_labels_is_evaluated_where_its_data_are(make_causal, data_folder, tmp_path):
    owners = {
        name: {
            "data": str(data_folder / f"{name}.jsonl"),
            "privacy": NO_OVERLAP_CHECK,
            "publish_labels": name == "farm",
        }
        for name in DOMAINS
    }
    recipe = make_causal(owners=owners)
    simulate(recipe, tmp_path / "run")
    assert read_unified(tmp_path / "run" / "model").classes.domains == ["farm"]
    found = evaluate_model(tmp_path / "run" / "model", [owner_recipe(recipe, "port")], "test")
    summary = json.loads((tmp_path / "run" / "summary.json").read_bytes())
    assert found["accuracy"]["told"]["port"] == summary["accuracy"]["unified"]["told"]["port"]


def test_language_modelling_lowers_perplexity_and_routes(text_run):
    summary = json.loads((text_run / "summary.json").read_bytes())
    assert "accuracy" not in summary
    perplexity = summary["perplexity"]
    assert perplexity["unified"]["mean"] < 0.8 * perplexity["seed"]["mean"]
    assert perplexity["oracle"]["mean"] == pytest.approx(
        float(np.exp(np.mean([np.log(perplexity[f"expert:{name}"][name]) for name in DOMAINS])))
    )
    page = (text_run / "report.html").read_text()
    assert 'id="perplexity"' in page
    assert 'id="accuracy"' not in page
    assert "perplexity is" in page


def test_language_modelling_has_no_labels_anywhere(text_run, make_causal):
    charter = read_charter(text_run / "charter")
    assert all(entry.labels is None for entry in charter.terms.owners.values())
    ledger = json.loads((text_run / "model" / "ledger.json").read_bytes())
    assert not any("class names" in entry["what"] for entry in ledger["farm"])
    found = evaluate_model(text_run / "model", [owner_recipe(make_causal("causal-text"), "farm")], "test")
    summary = json.loads((text_run / "summary.json").read_bytes())
    assert found["perplexity"]["farm"] == pytest.approx(summary["perplexity"]["unified"]["farm"])
    with pytest.raises(InputError, match="answers with text"):
        list(predict_items(read_unified(text_run / "model"), TEXTS, [1, 2, 3]))


def test_the_commands_know_perplexity(text_run, make_causal, data_folder, tmp_path):
    recipe = tmp_path / "farm.yaml"
    recipe.write_text(f"name: farm\ndata: {data_folder / 'farm.jsonl'}\n")
    result = CliRunner().invoke(app, ["evaluate", str(text_run / "model"), str(recipe)])
    assert result.exit_code == 0, result.output
    assert "perplexity" in result.output
    result = CliRunner().invoke(app, ["report", str(text_run), "--out", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output


def test_answers_of_the_pool_are_learnt_from(make_causal, tmp_path, decoder):
    pool = tmp_path / "pool.jsonl"
    rows = [{"text": text, "label": "lamp"} for text in make_texts(POOL_WORDS, 100, "answers")]
    pool.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompt = "{text}\nAnswer: {label}"
    recipe = make_causal(pool={"data": str(pool), "prompt": prompt}, training={"steps": 40, "learning_rate": 1e-2})
    simulate(recipe, tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "summary.json").read_bytes())["unification"]
    assert read_charter(tmp_path / "run" / "charter").terms.pool_labels == []
    assert facts["fallback"]["pool_agreement_without"] > 0.5  # of the answers' tokens, on items that nobody was shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "label-matching"}, "does not fit the seed model"),
        ({"router": {"context": "sequence"}}, "router.context does not fit"),
    ],
)
def test_what_does_not_fit_a_decoder_is_refused(make_causal, tmp_path, changes, message):
    with pytest.raises(RecipeError, match=message):
        simulate(make_causal(**changes), tmp_path / "run")


def test_a_causal_task_needs_a_decoder_with_its_head(make_causal, seed_folder, tmp_path):
    with pytest.raises(RecipeError, match="does not fit the seed model"):
        simulate(make_causal(seed_model=str(seed_folder)), tmp_path / "run")


@pytest.mark.parametrize(
    "prompt", ["{label}", "{text}", "{label} {text}", "{text} {other} {label}", "{text} {text} {label}"]
)
def test_prompts_without_their_fields_are_refused(make_causal, data_folder, prompt):
    owners = {"farm": {"data": str(data_folder / "farm.jsonl"), "prompt": prompt}}
    with pytest.raises(ValueError, match=r"owners\.farm\.prompt"):
        make_causal(owners=owners)
