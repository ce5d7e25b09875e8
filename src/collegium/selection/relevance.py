"""Relevance of every pool item to one owner's private domain, by a calibrated and cross-fitted classifier.

Logistic regression on frozen seed embeddings tells private rows from random pool items. Both classes weigh
the same, so the log-odds estimate log(private density / pool density) and do not depend on how many negatives
were drawn.

* Cross-fitting: private rows and pool are dealt into folds, and a fold is scored by the classifier that was
  trained on the other folds. No pool item is scored by a classifier that had it, or an exact copy of it, as a
  negative (Chernozhukov et al. 2018, https://arxiv.org/abs/1608.00060).
* Calibration: one sigmoid over the held-out scores of all folds (Platt 1999, with Platt's smoothed targets,
  so that separable classes stay finite). Isotonic regression would make steps, that is, ties.
* g = sigmoid(log-odds), returned as log g = −log1p(exp(−log-odds)): saturated items stay ordered.

Deviation from MetaMoE's code, which scores with a classifier trained on the scored items and keeps g (METHODS
§1).
"""

import hashlib
import math
import warnings

import numpy as np
from jaxtyping import Float, Float64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from collegium.core.errors import InputError
from collegium.core.progress import progress_bar
from collegium.core.random_streams import stream
from collegium.core.recipe import RelevanceSettings
from collegium.core.shapes import Embeddings, Indices
from collegium.selection.inputs import checked_chunks

FEWEST_NEGATIVES = 64  # with a handful of private rows, negatives_per_example alone would leave folds without any
LEAST_SLOPE = 1e-3  # of the calibration: where held-out rows are told apart no better than by chance, g is nearly flat


def log_relevance(
    pool_embeddings: Embeddings,
    private_embeddings: Float[np.ndarray, "_ dim"],
    settings: RelevanceSettings,
    random_seed: int,
) -> Float64[np.ndarray, " items"]:
    """log g (below or at 0) of every pool item; g = 0.5 means as likely private as public.

    Folds and negatives follow from a keyed hash of each row's content; the key is drawn from the stream
    "relevance". So neither the order of the pool nor that of the private rows matters, and equal rows share a
    fold. With a single distinct private row nothing can be held out: it trains every classifier and the
    scores stay uncalibrated. With a single distinct pool item there is nothing to compare: all log g are log
    0.5.

    Time O(n·d·folds) plus the fits; the pool (in memory or `np.memmap`) is read twice in chunks; memory
    beside it O(n + (1 + negatives_per_example)·N·d) for N private rows. BLAS runs on one thread meanwhile.

    Args:
        pool_embeddings: seed embeddings of the pool, any float dtype.
        private_embeddings: seed embeddings of the owner's training rows, at least one.

    Raises:
        InputError: no private row, or a row with NaN, an infinite value or zero norm (the row is named).
    """
    if not len(private_embeddings):
        raise InputError("There is no private row to compare the pool with.", do="check the owner's training data")
    key = stream(random_seed, "relevance").bytes(16)
    private_ranks = _ranks(private_embeddings, "private", key)
    pool_ranks = _ranks(pool_embeddings, "pool", key)
    if pool_ranks.max(initial=0) == 0:
        return np.full(len(pool_ranks), -math.log(2))
    wanted = max(math.ceil(settings.negatives_per_example * len(private_ranks)), FEWEST_NEGATIVES)
    negative_rows = np.flatnonzero(pool_ranks < wanted)
    negative_rows = negative_rows[np.argsort(pool_ranks[negative_rows], kind="stable")]
    negatives = np.asarray(pool_embeddings[negative_rows], np.float64)
    positives = np.asarray(private_embeddings, np.float64)[np.argsort(private_ranks, kind="stable")]
    negative_folds = pool_ranks[negative_rows] % settings.folds
    positive_folds = np.sort(private_ranks) % settings.folds
    if private_ranks.max() == 0:
        positive_folds[:] = settings.folds  # a fold that is never held out

    with threadpool_limits(limits=1):
        fits = [
            _fit(
                np.concatenate([positives[positive_folds != fold], negatives[negative_folds != fold]]),
                np.repeat([1, 0], [(positive_folds != fold).sum(), (negative_folds != fold).sum()]),
                settings.regularisation,
            )
            for fold in range(settings.folds)
        ]
        weights = np.array([fit[0] for fit in fits])  # folds dim
        biases = np.array([fit[1] for fit in fits])  # folds
        slope, offset = _calibrate(
            _held_out(positives, positive_folds, weights, biases),
            _held_out(negatives, negative_folds, weights, biases),
        )
        scores = np.empty(len(pool_ranks))
        with progress_bar("score the pool", len(pool_ranks)) as bar:
            for rows, chunk, _ in checked_chunks(pool_embeddings, "pool"):
                scores[rows] = _held_out(chunk, pool_ranks[rows] % settings.folds, weights, biases)
                bar.advance(len(chunk))
    return -np.logaddexp(0.0, -(slope * scores + offset))


def _ranks(embeddings: Embeddings, name: str, key: bytes) -> Indices:
    """Place of each row in a random order of the distinct rows; equal rows share a place."""
    digests = np.empty(len(embeddings), np.uint64)
    with progress_bar(f"read the {name} embeddings", len(embeddings)) as bar:
        for rows, chunk, _ in checked_chunks(embeddings, name):
            contents = chunk + 0.0  # −0.0 and 0.0 are one content
            digests[rows] = [
                int.from_bytes(hashlib.blake2b(content.tobytes(), digest_size=8, key=key).digest(), "big")
                for content in contents
            ]
            bar.advance(len(chunk))
    return np.unique(digests, return_inverse=True)[1]


def _fit(
    features: Embeddings,
    is_private: Indices,
    inverse_strength: float,
    sample_weight: Float64[np.ndarray, " items"] | None = None,
) -> tuple[Float64[np.ndarray, " dim"], float]:
    """Weights and bias of one logistic regression in which both classes weigh the same."""
    classifier = LogisticRegression(
        C=inverse_strength,
        class_weight=None if sample_weight is not None else "balanced",
        max_iter=2000,
        tol=1e-6,
    )
    with warnings.catch_warnings():
        # Separable classes under a weak penalty: a solution short of the optimum orders items just as well.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(features, is_private, sample_weight=sample_weight)
    weights, bias = np.asarray(classifier.coef_), np.asarray(classifier.intercept_)  # 1 dim, 1
    return weights[0], float(bias[0])


def _held_out(
    features: Embeddings,
    folds: Indices,
    weights: Float64[np.ndarray, "_ dim"],
    biases: Float64[np.ndarray, " _"],
) -> Float64[np.ndarray, " _"]:
    """Log-odds of each row by the classifier of its own fold; rows of no fold are left out."""
    features, folds = features[folds < len(biases)], folds[folds < len(biases)]
    return (features @ weights.T + biases)[np.arange(len(folds)), folds]


def _calibrate(
    positive_scores: Float64[np.ndarray, " _"], negative_scores: Float64[np.ndarray, " _"]
) -> tuple[float, float]:
    """Slope and offset of the sigmoid that fits the held-out scores; (1, 0) where one class has none."""
    num_positive, num_negative = len(positive_scores), len(negative_scores)
    if not num_positive or not num_negative:
        return 1.0, 0.0
    scores = np.concatenate([positive_scores, negative_scores])
    targets = np.repeat([(num_positive + 1) / (num_positive + 2), 1 / (num_negative + 2)], [num_positive, num_negative])
    class_weights = np.repeat([0.5 / num_positive, 0.5 / num_negative], [num_positive, num_negative])
    centre, scale = float(scores.mean()), float(scores.std()) or 1.0
    # A soft target t is one example of each class, weighing t and 1 − t.
    weights, bias = _fit(
        np.tile((scores - centre) / scale, 2)[:, None],
        np.repeat([1, 0], len(scores)),
        1e6,
        np.concatenate([targets * class_weights, (1 - targets) * class_weights]),
    )
    slope = float(weights[0]) / scale
    if slope < LEAST_SLOPE:
        return LEAST_SLOPE, -LEAST_SLOPE * centre
    return slope, bias - slope * centre
