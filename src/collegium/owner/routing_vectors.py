"""Routing vectors: for each routed layer, the mean FFN input over an owner's examples (MetaMoE, stage 2).

r = (Σ private z(x) + Σ proxy z(x)) / (N + m), z(x) the masked mean over the tokens of x. Taken in the seed's pass
by default, where the sensitivity bound 2B/m holds and where routing is better (METHODS §4). Float64 sums over
examples; the result does not depend on batch size or on the side of the padding.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from collegium.data.items import Item
from collegium.models.encoder import Encoder
from collegium.models.ffn_inputs import ffn_input_means
from collegium.moe.architectures import Architecture


def routing_vectors(
    encoder: Encoder,
    architecture: Architecture,
    texts: Sequence[Item],
    layers: Sequence[int],
    batch_size: int = 64,
) -> Float64[np.ndarray, "layers dim"]:
    """The mean FFN input of all texts (private examples, and proxies where they belong in), for each layer."""
    total = np.zeros((len(layers), encoder.model.config.hidden_size), dtype=np.float64)
    for _, means in ffn_input_means(encoder, architecture, texts, layers, batch_size):
        total += means.sum(axis=0)
    return total / len(texts)
