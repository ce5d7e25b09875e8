"""What a target cannot express is refused, all of it in one error that says what; nothing is written."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from collegium.core.artifacts import writing
from collegium.core.errors import ArtifactError, InputError
from collegium.unify.export import export_model
from collegium.unify.unified_folder import KIND
from families import CONFIGS, GROUPED, tiny_seed, tiny_unified


@pytest.fixture
def folder(tmp_path):
    """Writes a unified model whose router has no bias; `centre` and others are put into the first router."""

    def write(family, context="token", decide="every-layer", router=None, class_name=None, **options):
        model = tiny_unified(tiny_seed(family, class_name), context=context, decide=decide, **options)
        with torch.no_grad():
            for one in model.routers.values():
                one.centre.zero_()
                one.context_weight.zero_()
            for name, value in (router or {}).items():
                getattr(next(iter(model.routers.values())), name).copy_(torch.as_tensor(value))
        model.save_pretrained(tmp_path / "unified")
        return tmp_path / "unified"

    return write


def refusal(path, to, error=InputError):
    with pytest.raises(error) as raised:
        export_model(path, to, path.parent / "exported")
    assert not (path.parent / "exported").exists()
    return str(raised.value)


@pytest.mark.parametrize(
    ("family", "to", "options", "words"),
    [
        ("mistral", "mixtral", {"decide": "once"}, "router.decide = once"),
        ("mistral", "mixtral", {"weighting": "softmax"}, "router.weighting = softmax"),
        ("qwen2", "qwen2-moe", {"router": {"bias": [1.0, 0.0, 0.0]}}, "a router bias (up to 1 between"),
        ("qwen3", "qwen3-moe", {"router": {"centre": torch.ones(32)}}, "a centre is one too"),
        ("olmo2", "flexolmo", {"context": "causal", "router": {"context_weight": 0.5}}, "context_weight up to 0.5"),
        ("olmo2", "flexolmo", {"context": "seed", "router": {"context_weight": 0.1}}, "router.context_weight=0"),
        ("olmo2", "flexolmo", {"context": "causal", "warmup_tokens": 3}, "router.warmup_tokens = 3"),
        ("llama", "mixtral", {}, "mlp_bias = True: the target has no such biases"),
        ("llama", "flexolmo", {}, "use --to mixtral"),
        ("qwen3", "qwen2-moe", {}, "use --to qwen3-moe"),
        ("gemma", "mixtral", {}, "no target continues it"),
    ],
)
def test_what_the_target_cannot_express_is_said(family, to, options, words, folder):
    message = refusal(folder(family, **options), to)
    assert words in message
    assert "serve the folder as it is" in message


def test_a_context_without_weight_and_a_token_router_with_one_are_no_obstacle(folder, tmp_path):
    path = folder("mistral", router={"context_weight": 0.5})
    export_model(path, "mixtral", tmp_path / "exported")  # context: token never reads it


def test_everything_in_the_way_is_said_at_once(folder, monkeypatch):
    biased = LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True)
    monkeypatch.setitem(CONFIGS, "llama", biased)
    options = {"decide": "once", "context": "causal", "weighting": "softmax", "warmup_tokens": 2}
    message = refusal(folder("llama", router={"context_weight": 1.0, "bias": [2.0, 0, 0]}, **options), "mixtral")
    assert message.count("\n    - ") == 7


def test_layers_with_and_without_a_window_do_not_fit_qwen3_moe(folder, monkeypatch):
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    monkeypatch.setitem(CONFIGS, "qwen3", type(CONFIGS["qwen3"])(**GROUPED, head_dim=8, **window))
    assert "one kind for all layers" in refusal(folder("qwen3"), "qwen3-moe")


@pytest.mark.parametrize(("family", "context"), [("bert", "token"), ("vit", "token")])
def test_encoders_are_refused(family, context, folder):
    assert "no language-model head" in refusal(folder(family, context=context), "mixtral", ArtifactError)


def test_a_decoder_without_its_head_is_refused(folder):
    path = folder("mistral", class_name="MistralModel")
    assert "no language-model head" in refusal(path, "mixtral", ArtifactError)


def test_a_seed_or_a_foreign_folder_is_refused(tmp_path):
    tiny_seed("mistral").save_pretrained(tmp_path / "seed")
    assert "got: model_type mistral" in refusal(tmp_path / "seed", "mixtral", ArtifactError)
    assert "no unified model" in refusal(tmp_path / "nothing", "mixtral", ArtifactError)


def test_code_in_the_folder_is_never_run(folder, tmp_path):
    path = folder("mistral")
    for file in path.glob("*.py"):
        file.write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')\n")
    export_model(path, "mixtral", tmp_path / "exported")
    assert not (tmp_path / "it ran").exists()
    assert not list((tmp_path / "exported").glob("*.py"))


def test_a_changed_artifact_is_refused(folder, tmp_path):
    path = folder("mistral")
    with writing(tmp_path / "sealed", KIND, {}, {}) as sealed:
        shutil.copytree(path, sealed, dirs_exist_ok=True)
    exported = export_model(tmp_path / "sealed", "mixtral", tmp_path / "from-artifact")
    assert exported.inputs["model"] != export_model(path, "mixtral", tmp_path / "from-folder").inputs["model"]
    content = bytearray((tmp_path / "sealed" / "model.safetensors").read_bytes())
    content[-2] ^= 1
    (tmp_path / "sealed" / "model.safetensors").write_bytes(content)
    assert "was changed" in refusal(tmp_path / "sealed", "mixtral", ArtifactError)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("model.layers.1.mlp.experts.2.up_proj.weight"), "lacks the tensor model.layers.1"),
        (lambda state: state.pop("model.layers.1.mlp.router.weight"), "does not hold the tensors"),
        (lambda state: state.update({"extra.weight": torch.zeros(3)}), "does not hold the tensors"),
        (lambda state: state.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}), "cannot be copied"),
        (lambda state: state["model.layers.0.mlp.router.weight"].fill_(torch.nan), "not finite"),
        (lambda state: state.update({"model.layers.0.mlp.router.bias": torch.zeros(5)}), "another shape"),
        (lambda state: state["model.layers.0.mlp.router.temperature"].fill_(0.0), "not above 0"),
    ],
)
def test_damaged_weights_are_refused(change, words, folder):
    path = folder("mistral")
    state = load_file(path / "model.safetensors")
    change(state)
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    assert words in refusal(path, "mixtral", ArtifactError)


@pytest.mark.parametrize(
    "change",
    [{"seed_model_type": "bert"}, {"seed_model_type": "nonsense"}, {"hidden_size": "many"}, {"expert_names": [3]}],
    ids=str,
)
def test_a_configuration_that_cannot_be_is_refused(change, folder):
    path = folder("mistral")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | change))
    assert "no unified model" in refusal(path, "mixtral", ArtifactError)


def test_an_index_that_leads_out_of_the_folder_is_refused(folder):
    path = folder("mistral")
    (path / "model.safetensors").rename(path.parent / "elsewhere.safetensors")
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "files outside the folder" in refusal(path, "mixtral", ArtifactError)


def test_a_folder_with_something_else_is_left_alone(folder, tmp_path):
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "letter.txt").write_text("dear")
    with pytest.raises(ArtifactError, match="already holds something else"):
        export_model(folder("mistral"), "mixtral", tmp_path / "exported")
    assert (tmp_path / "exported" / "letter.txt").read_text() == "dear"
