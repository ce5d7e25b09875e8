"""Label matching: the class whose prompted name is closest to the text's embedding wins.

logits = logit_scale · cosine(embedding of the text, frozen seed's embedding of the prompted class name), as CLIP and
sentence encoders do it. Class names are public, so all owners' names can compete while each expert is trained
(METHODS §4: +8 points of union accuracy).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from collegium.core.errors import InputError
from collegium.models.encoder import Encoder, embed_texts


@dataclass(frozen=True)
class ClassSet:
    """All class names that can compete, with their embeddings.

    Attributes:
        names: (domain, label) of every class, domains in order.
        embeddings: unit-norm float32; [classes, dim].
    """

    names: tuple[tuple[str, str], ...]
    embeddings: Float32[Tensor, "classes dim"]

    def of(self, domain: str) -> list[int]:
        """Indices of a domain's classes."""
        return [index for index, (owner, _) in enumerate(self.names) if owner == domain]

    def index(self, domain: str, label: str) -> int:
        return self.names.index((domain, label))

    def public(self) -> "ClassSet":
        """Without the pool's own classes, whose domain starts with a colon."""
        kept = [index for index, (domain, _) in enumerate(self.names) if not domain.startswith(":")]
        return ClassSet(tuple(self.names[index] for index in kept), self.embeddings[kept].clone())

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(domain for domain, _ in self.names))


def class_set(seed: Encoder, domains: Mapping[str, tuple[str, Sequence[str]]]) -> ClassSet:
    """Embed the class names of every domain with the frozen seed.

    Args:
        domains: domain → (prompt with {label}, labels).

    Raises:
        InputError: two classes have the same prompted name, so no answer could tell them apart.
    """
    names = [(domain, label) for domain, (_, labels) in domains.items() for label in labels]
    sentences = [prompt.replace("{label}", label) for prompt, labels in domains.values() for label in labels]
    seen: dict[str, tuple[str, str]] = {}
    for name, sentence in zip(names, sentences, strict=True):
        if sentence in seen:
            raise InputError(
                f"Two classes have the same prompted name {sentence!r}: {seen[sentence]} and {name}.",
                do="give one of the owners another prompt",
            )
        seen[sentence] = name
    return ClassSet(tuple(names), torch.from_numpy(embed_texts(seed, sentences)))


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
