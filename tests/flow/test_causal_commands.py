"""What the other commands do with a decoder that `run` unified: explain, predict, export, lm-eval."""

import json
import re
from importlib import util

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from collegium.cli.main import app
from collegium.core.artifacts import read_artifact
from collegium.flow.predict import predict_items
from collegium.flow.simulate import simulate
from collegium.unify.unified_folder import read_unified
from fake_hub import TOKEN, fake_hub

TEXTS = ["the old cow", "hull mast keel", "one two"]
LONG = "the old cow near the barley here and there"  # [CLS] and 9 words; a warm-up of 8 tokens routes the last 3
LORA = {"parameters": "lora", "rank": 4, "steps": 40, "batch_size": 16, "warmup_steps": 0, "learning_rate": 1e-2}
# peft asks transformers for an attribute that has a new name; neither is ours.


@pytest.fixture(scope="module")
def run(make_causal, tmp_path_factory):
    """With the default router and low-rank experts."""
    folder = tmp_path_factory.mktemp("run") / "choice"
    simulate(make_causal(training=LORA), folder)
    return folder


@pytest.fixture(scope="module")
def exportable(make_causal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "exportable"
    simulate(make_causal(router={"preset": "exportable"}), folder)
    return folder


def command(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_explain_shows_the_warm_up_and_then_the_owners(run, tmp_path):
    output = command("explain", run / "model", LONG, "--html", tmp_path / "page.html")
    line = output.partition("layers 1–2\n")[2].partition("\n")[0]
    assert line.startswith("‹[CLS] the old cow near the barley› seed ‹here")
    assert set(re.findall(r"› (\S+)", line)) <= {"seed", "farm", "port"}
    assert "the first 7 tokens take the seed" in output
    assert "the first 7 tokens take the seed" in (tmp_path / "page.html").read_text()


def test_predict_answers_from_the_command_line(run, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    rows = [json.loads(line) for line in command("predict", run / "model", tmp_path / "texts.txt").splitlines()]
    assert rows == list(predict_items(read_unified(run / "model"), TEXTS, [1, 2, 3]))
    told = command("predict", run / "model", tmp_path / "texts.txt", "--domain", "port", "--json")
    assert {json.loads(line)["domain"] for line in told.splitlines()} == {"port"}


def test_a_model_with_the_exportable_router_becomes_mixtral_exactly(exportable, tmp_path):
    output = command("export", exportable / "model", "--to", "mixtral", "--out", tmp_path / "out")
    artifact = read_artifact(tmp_path / "out")
    assert artifact.sha256 in output
    ours = read_unified(exportable / "model").encoder.model
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == "MixtralForCausalLM"
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")([LONG], return_tensors="pt")
    with torch.no_grad():
        expected = ours(**inputs, output_routing=True)
        found = theirs(**inputs).logits
    used = torch.cat([routing.experts.flatten() for routing in expected.routings.values()])
    assert set(used.tolist()) == {0, 1}
    torch.testing.assert_close(found, expected.logits, rtol=1e-5, atol=1e-5 * float(expected.logits.abs().max()))
    written = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(theirs.generate(**inputs, **written), ours.generate(**inputs, **written))


def test_an_export_says_where_it_comes_from_and_holds_nothing_of_our_own_format(exportable, tmp_path):
    command("export", exportable / "model", "--to", "mixtral", "--out", tmp_path / "out")
    model = read_artifact(exportable / "model")
    files = read_artifact(tmp_path / "out").files
    assert {name for name in files if name.endswith(".py")} == set()
    assert set(files) == {
        "README.md", "config.json", "generation_config.json", "ledger.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert "auto_map" not in config
    assert not [name for name in config if "collegium" in str(config[name]) or name in ("decide", "context")]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "causal" in card
    assert model.sha256[:16] in card
    for index, owner in enumerate(("farm", "port")):
        assert f"| {index} | {owner} | `{model.inputs[f'contribution:{owner}'][:16]}` |" in card
    assert (tmp_path / "out" / "ledger.json").read_bytes() == (exportable / "model" / "ledger.json").read_bytes()


def test_a_model_with_the_default_router_is_exported_without_its_context(run, tmp_path):
    arguments = ["export", str(run / "model"), "--to", "mixtral", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, arguments)
    assert "--drop-context --pool POOL" in str(refused.exception)
    output = command(*arguments, "--drop-context", "--pool", run / "pool")
    assert "next token" in output
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == "MixtralForCausalLM"
    assert theirs.config.num_local_experts == 3  # the warm-up's seed is one more
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")([LONG], return_tensors="pt")
    with torch.no_grad():
        assert torch.isfinite(theirs(**inputs).logits).all()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "It is not the same model" in card
    assert "| 2 | seed |" in card


def test_push_takes_a_decoder_which_has_no_class_embeddings(run, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with fake_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        command("push", run / "model", "tiny/decoder")
        files = {*read_artifact(run / "model").files, "manifest.json"}
        assert files <= set(hub.repositories["tiny/decoder"]["main"])


@pytest.mark.skipif(util.find_spec("lm_eval") is None, reason="needs lm-eval: the extra eval")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_lm_eval_runs_on_the_folder(run, tmp_path):
    rows = [{"text": text, "choices": ["ship", "animal"], "answer": number % 2} for number, text in enumerate(TEXTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tiny.yaml").write_text(
        f"task: tiny\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path / 'rows.jsonl'}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{text}} Answer:'\n"
        "doc_to_target: '{{answer}}'\ndoc_to_choice: '{{choices}}'\nmetric_list:\n  - metric: acc\n"
    )
    arguments = ["evaluate", run / "model", "--lm-eval", "tiny", "--lm-eval-tasks-folder", tmp_path, "--json"]
    assert 0 <= json.loads(command(*arguments))["results"]["tiny"]["acc,none"] <= 1
