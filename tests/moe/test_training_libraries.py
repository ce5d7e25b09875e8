"""A unified model is a Hugging Face model like any other: Trainer, TRL and PEFT train it, and what they save loads."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from families import DECODERS, answer, tiny_inputs, tiny_seed, tiny_unified
from tiny import DOMAINS, make_texts

# What the libraries call of transformers; gone with their next versions.
pytestmark = pytest.mark.filterwarnings("ignore:`.*gradient_checkpointing.*` is deprecated:FutureWarning")

OPTIONS: dict[str, Any] = {
    "max_steps": 3,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
}
FIXED = (".router.centre", ".router.temperature", ".router.context_weight")  # set in closed form, never trained


def unified(family: str, **options: object) -> Any:
    return tiny_unified(tiny_seed(family), num_owners=2, noise=0.3, **{"decide": "every-layer", **options})


def parameters(model: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def moved(model: Any, before: dict[str, Tensor]) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


def same_answers(one: Any, other: Any, batch: dict[str, Tensor]) -> bool:
    """Copies are compared: a loaded weight may lie at another alignment in memory, and a product rounds otherwise."""
    one, other = copy.deepcopy(one).eval(), copy.deepcopy(other).eval()
    with torch.no_grad():
        return torch.equal(answer(one(**batch)), answer(other(**batch)))


def check_saved(trainer: Any, folder: Path, auto_class: Any, batch: dict[str, Tensor]) -> None:
    trainer.save_model(str(folder))
    loaded = auto_class.from_pretrained(folder)
    state = trainer.model.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())
    assert same_answers(trainer.model, loaded, batch)


@pytest.fixture
def tokenizer(seed_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(seed_folder, eos_token="[SEP]")


def sentences(count: int = 8) -> list[str]:
    return make_texts(DOMAINS["farm"]["animal"], count, "sentences")


def test_trainer_moves_everything_of_an_encoder_that_is_to_be_trained(tmp_path: Path) -> None:
    model, batch = unified("bert", context="sequence"), tiny_inputs("bert", [9, 5, 7, 8])
    before = parameters(model)
    rows = [{**{name: tensor[row] for name, tensor in batch.items()}, "labels": row % 2} for row in range(4)]

    def loss(output: Any, labels: Tensor, num_items_in_batch: object = None) -> Tensor:
        return cross_entropy(output.last_hidden_state[:, 0, :2], labels)

    arguments = TrainingArguments(str(tmp_path / "run"), remove_unused_columns=False, **OPTIONS)
    trainer = Trainer(model, arguments, train_dataset=rows, compute_loss_func=loss)  # pyright: ignore[reportArgumentType]
    trainer.train()
    trained = moved(model, before)
    # Of the last layer only the first token's expert has a part in this loss, of the pooler nothing.
    others = {name for name in before if not name.startswith(("pooler.", "encoder.layer.2.")) and "embed" not in name}
    assert {name for name in others if not name.endswith(FIXED)} <= trained
    assert not any(name.endswith(FIXED) for name in trained)
    assert "encoder.layer.2.intermediate.router.weight" in trained
    check_saved(trainer, tmp_path / "saved", AutoModel, batch)


@pytest.mark.parametrize("weighting", ["straight-through", "softmax"])
def test_trainer_trains_a_decoder_and_its_routers(weighting: str, tmp_path: Path) -> None:
    model, batch = unified("llama", weighting=weighting), tiny_inputs("llama", [9, 5, 7, 8])
    before = parameters(model)
    batch_with_labels = {**batch, "labels": batch["input_ids"]}
    rows = [{name: tensor[row] for name, tensor in batch_with_labels.items()} for row in range(4)]
    arguments = TrainingArguments(str(tmp_path / "run"), **OPTIONS)
    trainer = Trainer(model, arguments, train_dataset=rows)  # pyright: ignore[reportArgumentType]
    trainer.train()
    assert moved(model, before) == {name for name in before if not name.endswith(FIXED)}
    check_saved(trainer, tmp_path / "saved", AutoModelForCausalLM, batch)


@pytest.mark.parametrize(("context", "decide"), [("causal", "every-layer"), ("seed", "once"), ("token", "every-layer")])
def test_trl_fine_tunes_a_decoder(context: str, decide: str, tokenizer: Any, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="needs trl, of the extra dev")
    model, batch = unified("llama", context=context, decide=decide), tiny_inputs("llama", [9, 5])
    before = parameters(model)
    data = Dataset.from_list([{"text": text} for text in sentences()])
    arguments = trl.SFTConfig(str(tmp_path / "run"), max_length=16, bf16=False, **OPTIONS)
    assert arguments.gradient_checkpointing  # TRL's default: the layers are replayed
    trainer = trl.SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    trained = moved(model, before)
    assert {f"model.layers.1.mlp.{name}" for name in ("router.weight", "experts.0.up_proj.weight")} <= trained
    check_saved(trainer, tmp_path / "saved", AutoModelForCausalLM, batch)


def test_trl_teaches_a_decoder_preferences(tokenizer: Any, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="needs trl, of the extra dev")
    unified("llama").save_pretrained(tmp_path / "model")  # the reference model is loaded from there
    model, batch = AutoModelForCausalLM.from_pretrained(tmp_path / "model"), tiny_inputs("llama", [9, 5])
    before = parameters(model)
    texts = sentences(12)
    data = Dataset.from_list(
        [{"prompt": a, "chosen": f" {b}", "rejected": f" {c}"} for a, b, c in zip(texts[::3], texts[1::3], texts[2::3])]
    )
    arguments = trl.DPOConfig(str(tmp_path / "run"), max_length=32, bf16=False, **OPTIONS)
    trainer = trl.DPOTrainer(model, args=arguments, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    assert trainer.state.log_history[-1]["rewards/margins"] != 0  # the reference stayed as it was
    trained = moved(model, before)
    assert {f"model.layers.1.mlp.{name}" for name in ("router.weight", "experts.0.up_proj.weight")} <= trained
    check_saved(trainer, tmp_path / "saved", AutoModelForCausalLM, batch)


def lora(**options: object) -> LoraConfig:
    targets = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]  # of the attention, and of every expert
    return LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM", **options)  # pyright: ignore


def train_adapter(base: Any, batch: dict[str, Tensor], config: LoraConfig) -> Any:
    model = get_peft_model(base, config).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        model(**batch, labels=batch["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("routers", [False, True], ids=["frozen-routers", "trained-routers"])
def test_peft_adapters_are_trained_saved_loaded_and_merged(routers: bool, tmp_path: Path) -> None:
    base, batch = unified("llama"), tiny_inputs("llama", [9, 5, 7, 8])
    original = copy.deepcopy(base)
    own = parameters(base)
    model = train_adapter(base, batch, lora(modules_to_save=["router"] if routers else None))
    trained = parameters(model)
    factors = [name for name in trained if ".lora_B." in name]
    assert len([name for name in factors if ".experts." in name]) == 3 * 2 * 3  # layers · experts · matrices
    assert all(trained[name].any() for name in factors)

    model.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(copy.deepcopy(original), tmp_path / "adapter")
    assert same_answers(model, loaded, batch)
    assert not same_answers(model, original, batch)

    merged = loaded.merge_and_unload()
    assert type(merged) is type(original)
    assert merged.state_dict().keys() == original.state_dict().keys()
    with torch.no_grad():
        torch.testing.assert_close(merged(**batch).logits, model(**batch).logits, rtol=1e-4, atol=1e-4)
    changed = {name for name in moved(merged, own) if ".router." in name}
    expected = {f"model.layers.{layer}.mlp.router.{part}" for layer in range(3) for part in ("weight", "bias")}
    assert changed == (expected if routers else set())
    merged.save_pretrained(tmp_path / "merged")
    assert same_answers(merged, AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), batch)


def test_leaving_an_expert_out_holds_under_an_adapter_that_has_routers_of_its_own() -> None:
    batch = tiny_inputs("llama", [9, 5, 7, 8])
    model = train_adapter(unified("llama"), batch, lora(modules_to_save=["router"]))
    routed = model(**batch, output_routing=True).routings
    assert any((routing.experts == 0).any() for routing in routed.values())
    model.get_base_model().set_active_experts(["owner-1"])
    routed = model(**batch, output_routing=True).routings
    assert all((routing.experts == 1).all() for routing in routed.values())


@pytest.mark.parametrize("context", ["token", "causal", "seed"])
@pytest.mark.parametrize("family", DECODERS)
def test_the_body_alone_computes_what_the_model_does(family: str, context: str) -> None:
    """TRL computes the loss from the body's states, past the forward of the class with a head."""
    model, batch = unified(family, context=context), tiny_inputs(family, [9, 5, 7], side="left")
    with torch.no_grad():
        whole = model(**batch, output_hidden_states=True).hidden_states[-1]
        alone = model.base_model(**batch)
        assert torch.equal(alone.last_hidden_state, whole)
        assert torch.equal(model.base_model(**batch, use_cache=False).last_hidden_state, whole)


def test_a_body_that_failed_leaves_no_state_behind() -> None:
    model, batch = unified("llama"), tiny_inputs("llama", [9, 5])
    with torch.no_grad():
        expected = model.base_model(**batch).last_hidden_state
        with pytest.raises(IndexError):
            model.base_model(input_ids=batch["input_ids"] + 1000)
        with pytest.raises(ValueError, match="attention_mask has shape"):
            model.base_model(input_ids=batch["input_ids"], attention_mask=torch.ones(2, 3))
        assert torch.equal(model.base_model(**batch).last_hidden_state, expected)
        with pytest.raises(RuntimeError, match="outside its model"):
            model.model.layers[0].mlp(expected)
