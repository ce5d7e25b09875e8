"""Texts to unit-norm embeddings, with any BERT-like model: the seed, an expert, or a unified model.

A batch-mate, padding or its side never changes an embedding (to float precision): positions are counted from the
first token, and means are masked. Cost: O(texts · tokens), memory of one batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from collegium.core.errors import RunError
from collegium.core.shapes import TokenMask
from collegium.moe.architectures import first_position

CHUNK = 4096  # texts whose token ids are held at a time


@dataclass(frozen=True)
class Encoder:
    """A model with its tokenizer and pooling.

    Attributes:
        pooling: `mean` over tokens, or the first token (`cls`).
        max_length: tokens kept of a text.
    """

    model: Any
    tokenizer: Any
    pooling: Literal["mean", "cls"]
    max_length: int

    def embed(self, inputs: dict[str, Tensor]) -> Float[Tensor, "items dim"]:
        """Unit-norm embeddings of a tokenised batch, with gradient where it is enabled."""
        return pool_tokens(self.model(**inputs).last_hidden_state, inputs["attention_mask"], self.pooling)

    def tokenise(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """A padded batch on the model's device, with positions that do not depend on the padding's side."""
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=self.max_length, padding=True, return_tensors="pt"
        )
        inputs = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
        inputs["position_ids"] += first_position(self.model.config)
        return {name: value.to(self.model.device) for name, value in inputs.items()}


def embed_texts(encoder: Encoder, texts: Sequence[str], batch_size: int = 64) -> Float[np.ndarray, "items dim"]:
    """Unit-norm float32 embeddings of all texts, in their order.

    Raises:
        RunError: the model gives a non-finite embedding.
    """
    embeddings = np.empty((len(texts), encoder.model.config.hidden_size), dtype=np.float32)
    with torch.inference_mode():
        for rows, inputs in batches_by_length(encoder, texts, batch_size):
            embeddings[rows] = encoder.embed(inputs).float().cpu().numpy()
    if not np.isfinite(embeddings).all():
        row = int(np.flatnonzero(~np.isfinite(embeddings).all(axis=1))[0])
        raise RunError(f"The model gives a non-finite embedding for text {row}.", do="check the model's weights")
    return embeddings


def batches_by_length(
    encoder: Encoder, texts: Sequence[str], batch_size: int
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Batches of texts of like length (less padding), with the rows that they hold."""
    for start in range(0, len(texts), CHUNK):
        chunk = range(start, min(start + CHUNK, len(texts)))
        ordered = sorted(chunk, key=lambda row: (len(texts[row]), row))
        for first in range(0, len(ordered), batch_size):
            rows = ordered[first : first + batch_size]
            yield rows, encoder.tokenise([texts[row] for row in rows])


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
