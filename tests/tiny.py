"""What the tests on tiny models share: made-up domains, texts, and a random seed model."""

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTImageProcessorPil,
    ViTModel,
)

DOMAINS = {
    "farm": {"animal": ["cow", "pig", "hen", "goat"], "plant": ["wheat", "barley", "oat", "rye"]},
    "port": {"ship": ["hull", "mast", "keel", "sail"], "sea": ["wave", "tide", "salt", "foam"]},
}
COMMON = ["the", "a", "old", "new", "big", "small", "red", "blue", "near", "far", "here", "there", "one", "two"]
POOL_WORDS = ["stone", "cloud", "lamp", "chair", "book", "road", "bridge", "clock", "glass", "paper"]
NO_OVERLAP_CHECK = {"overlap_similarity": 1.0}  # to a random encoder, all short texts are alike


def make_texts(words: list[str], count: int, name: str) -> list[str]:
    """Distinct made-up texts of 3 to 9 words."""
    generator = random.Random(name)
    texts: dict[str, None] = {}
    while len(texts) < count:
        length = generator.randint(3, 9)
        texts[" ".join(generator.choice(words + COMMON) for _ in range(length))] = None
    return list(texts)


def make_tiny_seed(folder: Path, random_seed: int = 0, layers: int = 3) -> Path:
    """A random BERT of 3 layers with a word tokenizer, in Hugging Face format."""
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *all_words()])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **special).save_pretrained(folder)
    torch.manual_seed(random_seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def all_words() -> list[str]:
    words = [*COMMON, *POOL_WORDS, *DOMAINS, "about"]
    return words + [word for labels in DOMAINS.values() for label, own in labels.items() for word in [label, *own]]


def make_tiny_decoder(folder: Path, random_seed: int = 0, layers: int = 3) -> Path:
    """A random Llama of 3 layers with its head and a word tokenizer that puts [CLS] before a text."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[END]", "Answer", ":"]
    vocabulary = {word: index for index, word in enumerate([*special, *all_words()])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    named = {"unk_token": "[UNK]", "bos_token": "[CLS]", "eos_token": "[END]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **named).save_pretrained(folder)
    torch.manual_seed(random_seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=None,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def draw(kind: str, number: int, side: int = 8) -> UInt8[np.ndarray, "side side 3"]:
    """A made-up picture: each kind has a colour, a stripe and noise of its own."""
    style = np.random.default_rng(int(hashlib.sha256(kind.encode()).hexdigest()[:8], 16))
    base, stripe, colour = style.integers(0, 200, 3), style.integers(0, side - 1), style.integers(0, 256, 3)
    noise = np.random.default_rng([number, int(stripe)]).integers(0, 56, (side, side, 3))
    pixels = base + noise
    pixels[stripe : stripe + 2] = colour
    return pixels.astype(np.uint8)


def write_pictures(folder: Path, kinds: list[str], count: int, first: int = 0) -> Path:
    """`kind/number.png`, `count` pictures of each kind."""
    for kind in kinds:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            Image.fromarray(draw(kind, number)).save(folder / kind / f"{number}.png")
    return folder


def make_tiny_vision_seed(folder: Path, random_seed: int = 0, layers: int = 3) -> Path:
    """A random ViT of 3 layers for pictures of 16 × 16 pixels, in Hugging Face format."""
    torch.manual_seed(random_seed)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
        initializer_range=0.3,
    )
    ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=half, image_std=half).save_pretrained(folder)
    return folder


def make_tiny_clip(folder: Path, words: list[str], random_seed: int = 0) -> Path:
    """A random CLIP, both towers, for pictures of 16 × 16 pixels and texts of `words`, in Hugging Face format."""
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[BOS]", "[EOS]", *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 2), ("[EOS]", 3)])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, **special).save_pretrained(folder)
    torch.manual_seed(random_seed)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    text = {"vocab_size": len(vocabulary), "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 2}
    config = CLIPConfig(
        text_config={**shape, **text, "hidden_size": 16, "eos_token_id": 3, "projection_dim": 24},
        vision_config={**shape, "image_size": 16, "patch_size": 4, "projection_dim": 24},
        projection_dim=24,
    )
    model = CLIPModel(config)
    with torch.no_grad():
        for parameter in model.parameters():  # texts of a young CLIP are all alike
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=half, image_std=half).save_pretrained(folder)
    return folder


def write_all_domains(path: Path, count: int) -> Path:
    """Labelled JSONL of all domains, `count` rows for each class."""
    rows = [
        {"text": text, "label": label}
        for labels in DOMAINS.values()
        for label, words in labels.items()
        for text in make_texts(words, count, label)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_rows(path: Path, domain: str, count: int, name: str = "") -> Path:
    """Labelled JSONL of one domain, `count` rows for each class."""
    rows = [
        {"text": text, "label": label}
        for label, words in DOMAINS[domain].items()
        for text in make_texts(words, count, f"{domain}{label}{name}")
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
