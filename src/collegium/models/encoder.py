"""Texts or pictures to unit-norm embeddings, with any encoder: the seed, an expert, or a unified model.

A batch-mate, padding or its side never changes an embedding (to float precision): positions are counted from the
first token, and means are masked. Cost: O(texts · tokens), memory of one batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from collegium.core.errors import DataError, RunError
from collegium.core.shapes import TokenMask
from collegium.data.items import Item, Modality, modality_of
from collegium.models.pixels import pixel_values, reads_pictures
from collegium.moe.architectures import first_position
from collegium.moe.router import Routing

Watch = Callable[[list[int], dict[int, Routing], TokenMask], None]  # rows of a batch, layer → routing, mask

CHUNK = 4096  # items whose token ids are held at a time
Pooling = Literal["mean", "cls", "projection"]
MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids", "pixel_values")


@dataclass(frozen=True)
class Encoder:
    """A model with its tokenizer and pooling.

    Attributes:
        tokenizer: of a vision model, its image processor.
        pooling: `mean` over tokens, the first token (`cls`), or the model's own `projection` into the space that
            texts and pictures share (CLIP).
        max_length: tokens kept of a text; of a picture, all there are.
    """

    model: Any
    tokenizer: Any
    pooling: Pooling
    max_length: int

    @property
    def modality(self) -> Modality:
        """What the model reads."""
        return "image" if reads_pictures(self.model) else "text"

    @property
    def embedding_dim(self) -> int:
        config = self.model.config
        return config.projection_dim if self.pooling == "projection" else config.hidden_size

    @property
    def names_reader(self) -> "Encoder":
        """What embeds class names, in the space of the items."""
        return self

    def embed(self, inputs: dict[str, Tensor]) -> Float[Tensor, "items dim"]:
        """Unit-norm embeddings of a tokenised batch, with gradient where it is enabled."""
        model = self.model if self.pooling == "projection" else self.model.base_model  # without a decoder's head
        return self.pool(model(**inputs), inputs)

    def pool(self, output: Any, inputs: dict[str, Tensor]) -> Float[Tensor, "items dim"]:
        """Unit-norm embeddings from what the model gives for a batch."""
        if self.pooling == "projection":
            projected = output.image_embeds if self.modality == "image" else output.text_embeds
            return torch.nn.functional.normalize(projected.float(), dim=-1)
        hidden = output.last_hidden_state
        return pool_tokens(hidden, token_mask(inputs, hidden), self.pooling)

    def tokenise(self, texts: Sequence[Item]) -> dict[str, Tensor]:
        """A batch on the model's device; texts padded, with positions that do not depend on the padding's side."""
        if self.modality == "image":
            return {"pixel_values": pixel_values(self.tokenizer, texts).to(self.model.device)}
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=self.max_length, padding=True, return_tensors="pt"
        )
        inputs = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
        inputs["position_ids"] += first_position(self.model.config)
        return {name: value.to(self.model.device) for name, value in inputs.items()}


def check_modality(encoder: Encoder, items: Sequence[Item], whose: str) -> None:
    """Refuse items that the model does not read.

    Args:
        whose: what they are of, for the message.

    Raises:
        DataError: texts for a model that reads pictures, or pictures for one that reads texts.
    """
    if len(items) and modality_of(items) != encoder.modality:
        raise DataError(
            f"The model does not read the data of the {whose}.",
            got=f"{modality_of(items)} items",
            expected=f"{encoder.modality} items",
            do="name another model, or other data; columns.image names a column of pictures",
        )


def model_inputs(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the model reads of a batch that holds targets as well."""
    return {name: batch[name] for name in MODEL_INPUTS if name in batch}


def token_mask(batch: dict[str, Tensor], hidden: Float[Tensor, "items tokens dim"]) -> TokenMask:
    """1 for a token, 0 for padding; a picture has no padding."""
    mask = batch.get("attention_mask")
    return torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device) if mask is None else mask


def embed_texts(
    encoder: Encoder, texts: Sequence[Item], batch_size: int = 64, watch: Watch | None = None
) -> Float[np.ndarray, "items dim"]:
    """Unit-norm float32 embeddings of all texts or pictures, in their order.

    Args:
        watch: is told the routing of every batch of a unified model.

    Raises:
        RunError: the model gives a non-finite embedding.
    """
    embeddings = np.empty((len(texts), encoder.embedding_dim), dtype=np.float32)
    with torch.inference_mode():
        for rows, inputs in batches_by_length(encoder, texts, batch_size):
            if watch is None:
                embeddings[rows] = encoder.embed(inputs).float().cpu().numpy()
                continue
            output = encoder.model(**inputs, output_routing=True)
            embeddings[rows] = encoder.pool(output, inputs).cpu().numpy()
            watch(rows, output.routings, token_mask(inputs, output.last_hidden_state))
    if not np.isfinite(embeddings).all():
        row = int(np.flatnonzero(~np.isfinite(embeddings).all(axis=1))[0])
        raise RunError(
            f"The model gives a non-finite embedding for {encoder.modality} {row}.", do="check the model's weights"
        )
    return embeddings


def batches_by_length(
    encoder: Encoder, texts: Sequence[Item], batch_size: int
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Batches of texts of like length (less padding), with the rows that they hold; pictures in their order."""
    for start in range(0, len(texts), CHUNK):
        chunk = range(start, min(start + CHUNK, len(texts)))
        ordered = sorted(chunk, key=lambda row: (_length(texts[row]), row))
        for first in range(0, len(ordered), batch_size):
            rows = ordered[first : first + batch_size]
            yield rows, encoder.tokenise([texts[row] for row in rows])


def _length(item: Item) -> int:
    return len(item) if isinstance(item, str) else 0


def pool_tokens(
    hidden: Float[Tensor, "items tokens dim"], mask: TokenMask, pooling: Literal["mean", "cls"]
) -> Float[Tensor, "items dim"]:
    """Unit-norm sentence embeddings from token states."""
    hidden = hidden.float()
    if pooling == "cls":
        first = mask.argmax(dim=1)  # the first real token, wherever the padding is
        pooled = hidden[torch.arange(len(hidden), device=hidden.device), first]
    else:
        weights = mask.unsqueeze(-1).float()
        pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
    return torch.nn.functional.normalize(pooled, dim=-1)
