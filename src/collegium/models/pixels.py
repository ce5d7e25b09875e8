"""Pictures to the pixel values that a vision model reads, by the model's own image processor.

Always by the processor that works with Pillow, which is there wherever this package is: torchvision's resizes a little
differently, and then two machines would not get the same embeddings. Each picture is prepared alone, so a batch-mate
never changes it.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from transformers import AutoImageProcessor

from collegium.core.errors import DataError
from collegium.data.images import Picture
from collegium.data.items import Item

VOLATILE = ("image_processor_type", "processor_class", "_processor_class")


def reads_pictures(model: Any) -> bool:
    """Whether a model is a vision model."""
    return model.main_input_name == "pixel_values"


def load_image_processor(folder: str) -> Any:
    """The image processor of a model folder or hub name; raises what transformers raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # transformers leaves the configuration file open
        return AutoImageProcessor.from_pretrained(folder, trust_remote_code=False, backend="pil")


def processor_rules(processor: Any) -> dict[str, object]:
    """What decides the pixel values, for a fingerprint."""
    return {key: value for key, value in processor.to_dict().items() if key not in VOLATILE}


def pixel_values(processor: Any, items: Sequence[Item]) -> Float[Tensor, "items channels height width"]:
    """Pixel values of a batch.

    Raises:
        DataError: an item is no picture.
    """
    if not all(isinstance(item, Picture) for item in items):
        raise DataError("A model that reads pictures was given a text.", do="give pictures, or another model")
    prepared = [
        processor(item.pixels, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
        for item in items
        if isinstance(item, Picture)
    ]
    return torch.cat(prepared)


def seen_pixels(processor: Any, picture: Picture) -> UInt8[np.ndarray, "height width 3"]:
    """What of a picture the model sees, scaled and cropped, before its numbers are normalised."""
    prepared = processor(
        picture.pixels, do_rescale=False, do_normalize=False, input_data_format="channels_last", return_tensors="np"
    )
    return prepared["pixel_values"][0].transpose(1, 2, 0).clip(0, 255).round().astype(np.uint8)
