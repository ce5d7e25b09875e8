"""What networks of a federation read: embeddings of the frozen common expert, or pictures themselves."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from collegium.core.errors import RecipeError
from collegium.data.images import Picture
from collegium.data.items import Item
from collegium.models import efficientnet
from collegium.models.encoder import embed_texts
from collegium.models.seed_model import load_seed_model


def common_features(common_expert: str, items: Sequence[Item]) -> Float32[np.ndarray, "items dim"]:
    """What the common expert says of texts or pictures."""
    if common_expert == efficientnet.NAME:
        return efficientnet.efficientnet_features(items)
    return embed_texts(load_seed_model(common_expert), items)


def expert_inputs(
    kind: str, items: Sequence[Item], features: Float32[np.ndarray, "items dim"]
) -> Float32[np.ndarray, "items ..."]:
    """What experts read: the features themselves, or pixels from -1 to 1, [items, channels, height, width].

    Raises:
        RecipeError: pictures are wanted, and the items are texts or of several sizes.
    """
    if kind == "features":
        return features
    pictures = [item for item in items if isinstance(item, Picture)]
    if len(pictures) < len(items):
        raise RecipeError("inputs: pictures, but the data hold texts.", expected="inputs: features, or pictures")
    pixels = [picture.pixels for picture in pictures]
    if len({one.shape for one in pixels}) > 1:
        raise RecipeError("inputs: pictures, but they are not of one size.", expected="pictures of one size")
    return (np.stack(pixels).transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)
