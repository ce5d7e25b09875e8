"""Axis words of every array in the project, in one place.

    items     records of a pool, a data set or a batch
    classes   label names that compete in one answer
    dim       hidden size of the seed model
    experts   experts of a layer, in the order of the model's `expert_names`
    layers    layers of the seed model, counted from 0
    picks     chosen rows
    tokens    positions of a sequence, padding included
    clients   clients of a federation
    groups    classes or domains whose examples are shared out among clients

Shapes are checked against these words while the tests run (jaxtyping with beartype).
"""

import numpy as np
from jaxtyping import Float, Float32, Float64, Int
from torch import Tensor

Embeddings = Float[np.ndarray, "items dim"]  # unit-norm rows
Scores = Float[np.ndarray, " items"]
Indices = Int[np.ndarray, " items"]
Picks = Int[np.ndarray, " picks"]  # some rows, in the order in which they were picked
Mean = Float64[np.ndarray, " dim"]
Covariance = Float64[np.ndarray, "dim dim"]

TokenIds = Int[Tensor, "items tokens"]
TokenMask = Int[Tensor, "items tokens"]  # 1 = token, 0 = padding
ClassEmbeddings = Float32[Tensor, "classes dim"]  # unit-norm rows
Logits = Float[Tensor, "items classes"]
