"""Accuracy of an encoder on every domain, in two settings.

told    only the labels of the text's own domain compete
union   all labels of all domains compete, and nobody says which domain it is: one deployed model

Where each text has choices of its own they alone compete, in both settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int

from collegium.core.errors import DataError
from collegium.data.examples import Examples
from collegium.data.items import Item
from collegium.models.choices import choice_log_likelihoods
from collegium.models.encoder import Encoder, Watch
from collegium.models.tasks import Classes


@dataclass(frozen=True)
class Domain:
    """Labelled texts or pictures of one domain.

    Attributes:
        targets: index of the true class in the class set, or of the right choice among the text's own; [items].
        choices: answers that compete for each text, where texts have choices of their own.
        prompt: template of a decoder's owner, by which own choices are read.
    """

    name: str
    texts: Sequence[Item]
    targets: Int[np.ndarray, " items"]
    choices: Sequence[Sequence[str]] | None = None
    prompt: str = ""


@dataclass(frozen=True)
class Accuracies:
    """Fractions by domain, and the macro average under `mean`."""

    told: dict[str, float]
    union: dict[str, float]


@dataclass(frozen=True)
class Correct:
    """Which texts of one domain were answered right."""

    told: Bool[np.ndarray, " items"]
    union: Bool[np.ndarray, " items"]


def evaluate(encoder: Encoder, domains: Sequence[Domain], classes: Classes, batch_size: int) -> dict[str, Correct]:
    """Answer every text of every domain; domain → which answers were right."""
    return {domain.name: answer(encoder, domain, classes, batch_size) for domain in domains}


def answer(encoder: Encoder, domain: Domain, classes: Classes, batch_size: int, watch: Watch | None = None) -> Correct:
    """Answer every text of a domain: by its own choices where it has some, by the classes otherwise."""
    if domain.choices is None:
        return grade(classes.logits(encoder, domain.texts, batch_size, watch), domain, classes)
    found = choice_log_likelihoods(encoder, domain.prompt, domain.texts, domain.choices, watch)
    right = np.array([values.argmax() for values in found]) == domain.targets
    return Correct(told=right, union=right)


def grade(logits: Float32[np.ndarray, "items classes"], domain: Domain, classes: Classes) -> Correct:
    """Compare the best class with the true one."""
    competing = classes.of(domain.name)
    told = np.asarray(competing)[logits[:, competing].argmax(axis=1)]
    every = [index for index, (name, _) in enumerate(classes.names) if not name.startswith(":")]
    union = np.asarray(every)[logits[:, every].argmax(axis=1)]
    return Correct(told=told == domain.targets, union=union == domain.targets)


def accuracies(correct: Mapping[str, Correct]) -> Accuracies:
    """Share of right answers by domain, and the macro average over domains."""
    told = {name: float(answers.told.mean()) for name, answers in correct.items()}
    union = {name: float(answers.union.mean()) for name, answers in correct.items()}
    return Accuracies(
        told={**told, "mean": float(np.mean(list(told.values())))},
        union={**union, "mean": float(np.mean(list(union.values())))},
    )


def make_domain(name: str, examples: Examples, classes: Classes, prompt: str) -> Domain:
    """A domain with its targets.

    Args:
        prompt: by which examples with choices of their own are asked.

    Raises:
        DataError: a label that the class set does not hold.
    """
    known = {label: index for index, (owner, label) in enumerate(classes.names) if owner == name}
    labels = examples.labels or []
    if examples.choices is not None and labels:
        targets = [own.index(label) for own, label in zip(examples.choices, labels, strict=True)]
        return Domain(name, examples.texts, np.array(targets), examples.choices, prompt)
    unknown = sorted(set(labels) - set(known))
    if unknown or not labels:
        raise DataError(
            f"The data of {name} hold labels that the model does not know.",
            got=", ".join(unknown[:5]) or "no labels",
            expected=", ".join(known) or "published labels; for private ones give --seed-model",
        )
    return Domain(name, examples.texts, np.array([known[label] for label in labels]))
