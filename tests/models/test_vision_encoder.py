"""A vision seed: loaded, fingerprinted, and the same embedding in any batch."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import ViTImageProcessorPil

from collegium.core.errors import DataError
from collegium.data.images import picture_of
from collegium.models.encoder import check_modality, embed_texts
from collegium.models.ffn_inputs import ffn_input_means, norm_bound
from collegium.models.seed_model import load_seed_model
from families import FAMILIES, TEXTS, tiny_seed
from tiny import draw

VISION = [family for family in FAMILIES if family not in TEXTS]
PICTURES = [picture_of(draw(kind, n, side)) for kind in ("bag", "shoe") for n, side in enumerate((8, 16, 23))]


def test_what_is_read_and_pooled(vision_seed, vision_seed_folder):
    assert (vision_seed.modality, vision_seed.pooling, vision_seed.dim, vision_seed.max_length) == (
        "image",
        "cls",
        32,
        17,
    )
    embeddings = embed_texts(vision_seed, PICTURES)
    processor = ViTImageProcessorPil.from_pretrained(vision_seed_folder)
    with torch.inference_mode():
        for picture, embedding in zip(PICTURES, embeddings):
            pixels = processor(picture.pixels, return_tensors="pt")["pixel_values"]
            first = vision_seed.model(pixel_values=pixels).last_hidden_state[0, 0]
            assert np.allclose(embedding, (first / first.norm()).numpy(), atol=1e-5)


def test_a_batch_mate_changes_nothing(vision_seed):
    together = embed_texts(vision_seed, PICTURES, batch_size=64)
    for size in (1, 2, 5):
        assert np.allclose(embed_texts(vision_seed, PICTURES, batch_size=size), together, atol=1e-5)
    assert np.ptp(together @ together.T) > 0.01  # the pictures are told apart


def test_mean_pooling_is_a_setting_of_the_folder_and_part_of_the_fingerprint(vision_seed, vision_seed_folder, tmp_path):
    folder = shutil.copytree(vision_seed_folder, tmp_path / "mean")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    mean = load_seed_model(str(folder))
    assert mean.pooling == "mean"
    assert mean.fingerprint != vision_seed.fingerprint
    with torch.inference_mode():
        hidden = mean.model(**mean.tokenise(PICTURES[:1])).last_hidden_state[0].mean(dim=0)
    assert np.allclose(embed_texts(mean, PICTURES[:1])[0], (hidden / hidden.norm()).numpy(), atol=1e-5)


def test_the_fingerprint_covers_the_image_processor(vision_seed, vision_seed_folder, tmp_path):
    assert load_seed_model(str(vision_seed_folder)).fingerprint == vision_seed.fingerprint
    folder = shutil.copytree(vision_seed_folder, tmp_path / "other")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | {"image_mean": [0.4, 0.5, 0.5]}))
    assert load_seed_model(str(folder)).fingerprint != vision_seed.fingerprint


def test_router_inputs_are_means_over_all_patches_and_within_the_bound(vision_seed):
    seen = []
    layer = vision_seed.model.layers[1]
    hook = layer.mlp.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    embed_texts(vision_seed, PICTURES)
    hook.remove()
    ((rows, means),) = list(ffn_input_means(vision_seed, vision_seed.architecture, PICTURES, [1]))
    assert rows == list(range(len(PICTURES)))
    assert np.allclose(means[:, 0], seen[0].mean(dim=1).numpy(), atol=1e-5)
    assert np.linalg.norm(means, axis=2).max() <= norm_bound(vision_seed, vision_seed.architecture, 1)


def test_texts_and_pictures_do_not_mix(vision_seed, seed):
    with pytest.raises(DataError, match="reads pictures was given a text"):
        embed_texts(vision_seed, ["a text"])
    for encoder, items in ((vision_seed, ["a text"]), (seed, PICTURES)):
        with pytest.raises(DataError, match="does not read the data of the pool"):
            check_modality(encoder, items, "pool")


@pytest.mark.parametrize("family", VISION)
def test_every_vision_family_loads_and_embeds(family, tmp_path):
    model = tiny_seed(family)
    model.save_pretrained(tmp_path)
    side, half = model.config.image_size, [0.5, 0.5, 0.5]
    ViTImageProcessorPil(size={"height": side, "width": side}, image_mean=half, image_std=half).save_pretrained(
        tmp_path
    )
    seed = load_seed_model(str(tmp_path))
    embeddings = embed_texts(seed, PICTURES)
    hidden = seed.model(**seed.tokenise(PICTURES[:1])).last_hidden_state
    assert hidden.shape[1] == seed.max_length
    assert np.allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    assert np.allclose(embed_texts(seed, PICTURES, batch_size=1), embeddings, atol=1e-5)
