"""Which examples every method answers right, kept example by example: for paired comparisons, and not to ask twice.

Answers stay under a name that follows from what was asked and of whom. So a method that was added to a finished run,
or another run with the same experts, asks nobody again who has answered.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from collegium.core.artifacts import canonical_json, sha256_of, write_file
from collegium.evaluation.evaluate import Correct

Answers = Mapping[str, Correct]  # domain → which of its examples


def kept_answers(folder: Path, asked: str, answering: list[str], work: Callable[[], Answers]) -> Answers:
    """The answers kept in `folder`, or else those that `work` finds.

    Args:
        asked: digest of the examples and of the classes that compete.
        answering: what makes the answering model: a kind, and hashes.
    """
    question = sha256_of(canonical_json([asked, answering]))
    path = folder / f"{question[:16]}.safetensors"
    found = _read(path, question)
    if found is not None:
        return found
    answers = work()
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, answer_bytes({"": answers}, {"question": question}))
    return answers


def answer_bytes(answers: Mapping[str, Answers], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file of `method/domain` → [2, examples]: right where only own labels compete, and where all do."""
    tensors = {
        f"{method}/{domain}": np.stack([one.told, one.union])
        for method, own in answers.items()
        for domain, one in own.items()
    }
    return save(tensors, metadata)


def read_answers(path: Path) -> dict[str, dict[str, Correct]]:
    """What `answer_bytes` made: method → domain → answers."""
    found: dict[str, dict[str, Correct]] = {}
    with safe_open(path, "np") as opened:
        for name in opened.keys():  # noqa: SIM118  it is no mapping
            method, _, domain = name.rpartition("/")
            told, union = opened.get_tensor(name)
            found.setdefault(method, {})[domain] = Correct(told=told, union=union)
    return found


def _read(path: Path, question: str) -> Answers | None:
    try:
        with safe_open(path, "np") as opened:
            if (opened.metadata() or {}).get("question") != question:
                return None
        return read_answers(path)[""]
    except (OSError, SafetensorError, KeyError):
        return None
