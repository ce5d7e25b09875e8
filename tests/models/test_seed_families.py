"""Seeds of every family of texts from a folder; the FFN inputs of every family, and the bound on their length."""

import copy
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from collegium.models.encoder import Encoder, check_modality, embed_texts
from collegium.models.ffn_inputs import ffn_input_means, norm_bound
from collegium.models.seed_model import load_seed_model
from collegium.moe.architectures import ARCHITECTURES, layers_of
from families import DECODERS, DIM, FAMILIES, LAYERS, SEED_CLASSES, TEXTS, WORDS, tiny_inputs, tiny_seed

SENTENCES = ["the old cow", "a", "big small red blue near far here there one two", "hull mast keel sail"]
ROUNDING = 1e-5


@pytest.fixture
def make_folder(seed_folder, tmp_path):
    """A tiny seed of a family with the tests' word tokenizer."""

    def make(family, class_name=None):
        tiny_seed(family, class_name).save_pretrained(tmp_path)
        for file in seed_folder.glob("tokenizer*"):
            shutil.copy(file, tmp_path)
        return tmp_path

    return make


def collected(seed, texts, layers):
    means = np.full((len(texts), len(layers), seed.dim), np.nan)
    for rows, batch in ffn_input_means(seed, seed.architecture, texts, layers, batch_size=3):
        means[rows] = batch
    return means


@pytest.mark.parametrize("family", TEXTS)
def test_a_seed_of_every_family_loads_and_shows_its_ffn_inputs(family, make_folder):
    seed = load_seed_model(str(make_folder(family)))
    assert type(seed.model) is type(tiny_seed(family))
    assert type(seed.model).__name__.endswith("ForCausalLM") == (family in DECODERS)
    assert (seed.num_layers, seed.dim) == (LAYERS, DIM)
    seen = {}
    for layer, module in enumerate(layers_of(seed.model, seed.architecture)):
        ffn = module.get_submodule(seed.architecture.ffn)
        ffn.register_forward_pre_hook(lambda _, arguments, layer=layer: seen.update({layer: arguments[0]}))
    expected = []
    for text in SENTENCES:  # each alone, with nothing but its ids
        seed.model(input_ids=seed.tokenise([text])["input_ids"])
        expected.append([seen[layer][0].double().mean(dim=0).numpy() for layer in range(LAYERS)])
    for side in ("right", "left"):
        tokenizer = copy.deepcopy(seed.tokenizer)
        tokenizer.padding_side = side
        found = collected(replace(seed, tokenizer=tokenizer), SENTENCES, [0, 1, 2])
        np.testing.assert_allclose(found, expected, atol=ROUNDING * np.abs(expected).max())


@pytest.mark.parametrize(("family", "limit"), [("bert", 64), ("roberta", 62), ("llama", 64)])
def test_a_long_text_is_cut_to_the_positions_that_the_model_has(family, limit, make_folder):
    path = make_folder(family)
    file = path / "tokenizer_config.json"
    file.write_text(file.read_text().replace('"model_max_length": 32', '"model_max_length": 1000'))
    seed = load_seed_model(str(path))
    assert seed.max_length == limit
    assert seed.tokenise(["the " * 100])["input_ids"].shape[1] == limit
    assert np.isfinite(collected(seed, ["the " * 100], [2])).all()


def test_a_decoder_without_a_padding_token_pads_with_its_end(make_folder):
    path = make_folder("llama")
    file = path / "tokenizer_config.json"
    file.write_text(file.read_text().replace('"pad_token": "[PAD]"', '"eos_token": "[SEP]"'))
    seed = load_seed_model(str(path))
    assert seed.tokenizer.pad_token == "[SEP]"
    assert seed.tokenise(["a", "the old cow"])["attention_mask"].sum() == 8


def test_a_base_decoder_loads_without_a_head(make_folder):
    assert type(load_seed_model(str(make_folder("llama", "LlamaModel"))).model).__name__ == "LlamaModel"


def longest_inputs(model, architecture, batch, hidden=None):
    """Length of the longest FFN input of each layer; every layer is given `hidden` instead of what came before."""
    found = {}
    for layer, module in enumerate(layers_of(model, architecture)):
        if hidden is not None:
            module.register_forward_pre_hook(lambda _, arguments: (hidden, *arguments[1:]))
        module.get_submodule(architecture.ffn).register_forward_pre_hook(
            lambda _, arguments, layer=layer: found.update({layer: float(arguments[0].norm(dim=-1).max())})
        )
    with torch.no_grad():
        model(**batch)
    return found


@pytest.mark.parametrize("family", [family for family in FAMILIES if ARCHITECTURES[family].norm])
@pytest.mark.parametrize("height", [1.0, 1e4])
def test_the_bound_holds_for_hidden_states_made_to_break_it(family, height):
    architecture = ARCHITECTURES[family]
    model = tiny_seed(family)
    for module in layers_of(model, architecture):  # a norm whose longest output stands far above the others
        norm = module.get_submodule(architecture.norm)
        norm.weight.data = torch.randn(DIM, generator=torch.Generator().manual_seed(1))
        norm.weight.data[7] = 5.0
    batch = tiny_inputs(family, [DIM] * 2)
    tokens = 10 if "pixel_values" in batch else DIM
    spikes = height * torch.eye(DIM)[(torch.arange(tokens) + 4) % DIM].repeat(2, 1, 1)
    found = longest_inputs(model, architecture, batch, spikes)
    encoder = Encoder(model, None, "mean", 32)
    for layer in range(LAYERS):
        bound = norm_bound(encoder, architecture, layer)
        assert found[layer] <= bound * (1 + ROUNDING)
        assert height == 1.0 or found[layer] > 0.6 * bound, "the states do not come near the bound"


def test_the_bound_of_a_residual_stream_holds_for_every_word(seed):
    for random_seed in range(3):
        model, architecture = tiny_seed("olmo2"), ARCHITECTURES["olmo2"]
        generator = torch.Generator().manual_seed(random_seed)
        for module in layers_of(model, architecture):
            for name in architecture.residual_norms:
                norm = module.get_submodule(name)
                norm.weight.data = 1.0 + torch.rand(DIM, generator=generator)
        batch = {"input_ids": torch.arange(WORDS).reshape(1, WORDS)}
        found = longest_inputs(model, architecture, batch)
        encoder = Encoder(model, None, "mean", 32)
        bounds = [norm_bound(encoder, architecture, layer) for layer in range(LAYERS)]
        assert bounds == sorted(bounds)
        for layer, bound in enumerate(bounds):
            assert bound / 5 < found[layer] <= bound


def test_every_family_is_tested():
    assert set(SEED_CLASSES) == set(ARCHITECTURES)


def test_a_decoder_with_its_head_is_known_as_one_and_gives_the_embeddings_of_its_body(make_folder):
    with_head = load_seed_model(str(make_folder("llama")))
    assert with_head.has_head
    with torch.inference_mode():
        hidden = with_head.model.model(**with_head.tokenise(["a text"])).last_hidden_state[0].mean(dim=0)
    np.testing.assert_allclose(embed_texts(with_head, ["a text"])[0], hidden / hidden.norm(), atol=1e-5)


def test_a_decoder_without_its_head_is_taken(make_folder):
    without = load_seed_model(str(make_folder("llama", "LlamaModel")))
    assert not without.has_head
    check_modality(without, ["a text"], "pool")
