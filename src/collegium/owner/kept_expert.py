"""Trains an owner's expert, or takes the one that it trained before on the very same exercises.

A trained expert stays in the owner's work folder under a name that follows from everything that its training depends
on. So a charter that only routes differently costs no training, and neither does a command that was killed after it.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float32
from safetensors.torch import load_file, save_file
from torch import Tensor

from collegium.core.artifacts import canonical_json, finished, sha256_of, writing
from collegium.core.random_streams import stream_seed
from collegium.data.examples import Examples
from collegium.data.items import as_json
from collegium.models.exercises import Exercises
from collegium.models.seed_model import SeedModel
from collegium.owner.charter import Charter
from collegium.owner.training import train_expert
from collegium.privacy.release_store import ReleaseStore

KIND = "trained-expert"
TENSORS = "tensors.safetensors"
HEAD = "head"  # no FFN tensor is called so


@dataclass(frozen=True)
class KeptExpert:
    """A trained expert.

    Attributes:
        tensors: neutral name → float32 tensor: `layers.1.up_proj.weight`, or `layers.1.up_proj.lora_A` and `.lora_B`.
        head: trained rows of classes, of length 1; None where no row was to be trained.
    """

    tensors: dict[str, Tensor]
    head: Float32[Tensor, "_ dim"] | None


def kept_expert(
    charter: Charter,
    owner: str,
    seed: SeedModel,
    private: Examples,
    proxies: Sequence[str],
    exercises: Exercises,
    store: ReleaseStore,
    head_rows: int = 0,
) -> KeptExpert:
    """The expert of an owner, trained where it is not kept yet; a killed training goes on where it stopped.

    Args:
        proxies: content hashes of those that are in the exercises.
        head_rows: see `train_expert`.

    Raises:
        RunError: see `train_expert`.
    """
    layers = charter.trained_layers(seed.num_layers)
    question = _question(charter, owner, private, proxies, layers)
    path = store.work_folder() / f"expert-{question[:16]}"
    with store.working():
        found = _finished(path, question)
        if found is not None:
            return found
        checkpoints = path.with_name(f"checkpoints-{question[:16]}")
        own_seed = stream_seed(charter.terms.random_seed, "owner", owner)
        expert = train_expert(seed, exercises, charter.terms.training, layers, own_seed, checkpoints, head_rows)
        shutil.rmtree(path, ignore_errors=True)  # what lies there under our name is damaged
        with writing(path, KIND, {"question": question}, {}) as folder:
            head = {} if expert.head is None else {HEAD: expert.head}
            save_file({**expert.tensors, **head}, folder / TENSORS)
        shutil.rmtree(checkpoints, ignore_errors=True)
    return KeptExpert(expert.tensors, expert.head)


def _question(charter: Charter, owner: str, private: Examples, proxies: Sequence[str], layers: Sequence[int]) -> str:
    """Names everything that the training depends on. Hashes of private data never leave the work folder."""
    terms = charter.terms.model_dump(mode="json")
    agreed = ("seed_model", "task", "max_length", "training", "random_seed", "pool", "pool_prompt", "owners")
    texts = [as_json(item) for item in private.texts]
    owners = list(terms["owners"])  # their order is that of the classes
    return sha256_of(
        canonical_json([{key: terms[key] for key in agreed}, owners, owner, texts, private.labels, proxies, layers])
    )


def _finished(path: Path, question: str) -> KeptExpert | None:
    if finished(path, KIND, {"question": question}) is None:
        return None
    try:
        tensors = load_file(path / TENSORS)
    except OSError:
        return None
    head = tensors.pop(HEAD, None)
    return KeptExpert(tensors, head)
