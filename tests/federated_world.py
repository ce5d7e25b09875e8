"""Made-up clients: Gaussian classes in a few dimensions; every client has some of them."""

import numpy as np

from collegium.federated.protocol import ClientData

CLASSES, DIM = 4, 6


def make_client(random_seed, classes=range(CLASSES), examples=40):
    """Examples of some classes, whose centres are the same for all clients."""
    random = np.random.default_rng(random_seed)
    centres = 2 * np.random.default_rng(99).normal(size=(CLASSES, DIM))
    labels = random.choice(list(classes), size=examples)
    features = (centres[labels] + random.normal(size=(examples, DIM))).astype(np.float32)
    return ClientData(features, features, labels.astype(np.int64))
