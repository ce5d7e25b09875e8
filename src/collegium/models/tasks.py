"""What competes for an item: classes of all owners, and for the tasks with embeddings how they are scored.

Label matching: the class whose prompted name is closest to the text's embedding wins,
logits = logit_scale · cosine(embedding of the text, frozen seed's embedding of the prompted class name), as CLIP and
sentence encoders do it. Class names are public, so all owners' names can compete while each expert is trained
(METHODS §4: +8 points of union accuracy).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from collegium.core.artifacts import canonical_json, sha256_of
from collegium.core.errors import InputError
from collegium.data.items import Item
from collegium.models.encoder import Encoder, Watch, embed_texts


@dataclass(frozen=True)
class Classes(ABC):
    """All class names that can compete.

    Attributes:
        names: (domain, label) of every class, domains in order.
    """

    names: tuple[tuple[str, str], ...]

    @abstractmethod
    def logits(
        self, encoder: Encoder, items: Sequence[Item], batch_size: int = 64, watch: Watch | None = None
    ) -> Float32[np.ndarray, "items classes"]:
        """A model's score of every class for every item; their softmax is the model's probability."""

    @abstractmethod
    def take(self, kept: Sequence[int]) -> "Classes":
        """Some of the classes, by index."""

    @abstractmethod
    def __add__(self, other: "Classes") -> "Classes":
        """These and then the others, scored in the same way."""

    @property
    @abstractmethod
    def sha256(self) -> str:
        """A hash of everything by which they are scored."""

    def of(self, domain: str) -> list[int]:
        """Indices of a domain's classes."""
        return [index for index, (owner, _) in enumerate(self.names) if owner == domain]

    def index(self, domain: str, label: str) -> int:
        return self.names.index((domain, label))

    def public(self) -> "Classes":
        """Without the pool's own classes, whose domain starts with a colon."""
        return self.take([index for index, (domain, _) in enumerate(self.names) if not domain.startswith(":")])

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(domain for domain, _ in self.names))


@dataclass(frozen=True)
class ClassSet(Classes):
    """Classes with an embedding each, which an item's embedding is compared with.

    Attributes:
        embeddings: unit-norm float32; [classes, dim].
        logit_scale: logits are this times the cosine.
    """

    embeddings: Float32[Tensor, "classes dim"]
    logit_scale: float

    def logits(
        self, encoder: Encoder, items: Sequence[Item], batch_size: int = 64, watch: Watch | None = None
    ) -> Float32[np.ndarray, "items classes"]:
        embeddings = torch.from_numpy(embed_texts(encoder, items, batch_size, watch))
        return (self.logit_scale * embeddings @ self.embeddings.T).numpy()

    def take(self, kept: Sequence[int]) -> "ClassSet":
        return replace(
            self, names=tuple(self.names[index] for index in kept), embeddings=self.embeddings[list(kept)].clone()
        )

    @property
    def sha256(self) -> str:
        names = canonical_json([self.names, self.logit_scale])
        return sha256_of(names + self.embeddings.numpy().tobytes())

    def __add__(self, other: Classes) -> "ClassSet":
        assert isinstance(other, ClassSet)
        embeddings = torch.cat([self.embeddings, other.embeddings.to(self.embeddings.dtype)])
        return replace(self, names=self.names + other.names, embeddings=embeddings)


def class_set(seed: Encoder, domains: Mapping[str, tuple[str, Sequence[str]]], logit_scale: float) -> ClassSet:
    """Embed the class names of every domain with the frozen seed (of pictures, with its text tower).

    Args:
        domains: domain → (prompt with {label}, labels).

    Raises:
        InputError: two classes have the same prompted name, so no answer could tell them apart.
    """
    names, sentences = prompted_names(domains)
    return ClassSet(names, torch.from_numpy(embed_texts(seed.names_reader, sentences)), logit_scale)


def prompted_names(
    domains: Mapping[str, tuple[str, Sequence[str]]],
) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """(domain, label) of every class, and its sentence.

    Raises:
        InputError: two classes have the same sentence.
    """
    names = tuple((domain, label) for domain, (_, labels) in domains.items() for label in labels)
    sentences = [prompt.replace("{label}", label) for prompt, labels in domains.values() for label in labels]
    seen: dict[str, tuple[str, str]] = {}
    for name, sentence in zip(names, sentences, strict=True):
        if sentence in seen:
            raise InputError(
                f"Two classes have the same prompted name {sentence!r}: {seen[sentence]} and {name}.",
                do="give one of the owners another prompt",
            )
        seen[sentence] = name
    return names, sentences


def matching_loss(
    embeddings: Float[Tensor, "items dim"],
    classes: Float[Tensor, "classes dim"],
    targets: Float[Tensor, "items classes"],
    allowed: Float[Tensor, "items classes"],
    logit_scale: float,
) -> Float[Tensor, ""]:
    """Cross-entropy with soft targets over the allowed classes of each item.

    Args:
        targets: probabilities, 0 where not allowed; rows sum to 1.
        allowed: 1 where the class competes for this item.
    """
    logits = logit_scale * embeddings @ classes.T
    logits = logits.masked_fill(allowed == 0, torch.finfo(logits.dtype).min)
    return -(targets * logits.log_softmax(dim=-1)).sum(dim=-1).mean()


def seed_answers(
    embeddings: Float[np.ndarray, "items dim"], classes: Float32[Tensor, "classes dim"], logit_scale: float
) -> Float32[np.ndarray, "items classes"]:
    """The seed's probabilities over the classes: the targets of distillation for items without a label."""
    logits = torch.from_numpy(np.ascontiguousarray(embeddings)).float() @ classes.T * logit_scale
    return logits.softmax(dim=-1).numpy()
