"""An owner's one command: select proxies, train the expert, pack the contribution.

Needs the charter, the pool, the seed model and the private data; no network. What leaves is `contribution.py`'s
artifact and nothing else; everything between (selection, checkpoints, the trained expert, the memory of releases) stays
in the owner's store.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from collegium.core.artifacts import MANIFEST, Artifact, canonical_json, read_artifact, sha256_of
from collegium.core.errors import ArtifactError
from collegium.core.progress import say
from collegium.core.recipe import OwnerRecipe
from collegium.data.examples import Examples
from collegium.data.items import as_json, normalised
from collegium.models.encoder import check_modality, embed_texts
from collegium.models.exercises import Exercises
from collegium.models.expert_tensors import dense_model, full_expert
from collegium.models.ffn_inputs import norm_bound
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import Classes
from collegium.owner.charter import Charter, check_pool, check_seed
from collegium.owner.choose_proxies import choose_proxies
from collegium.owner.contribution import (
    CARD,
    EXPERT,
    HEAD,
    LEDGER,
    PROXIES,
    ROUTING,
    routing_tensors,
    safetensors_bytes,
    write_contribution,
)
from collegium.owner.exercises import private_exercises, proxy_exercises
from collegium.owner.head import head_classes, starting_rows
from collegium.owner.kept_expert import kept_expert
from collegium.owner.private_data import load_private
from collegium.owner.routing_vectors import routing_vectors
from collegium.owner.validate import expected_expert, expected_head
from collegium.privacy.ledger import Release, contribution_ledger, ledger_json, routing_release
from collegium.privacy.release_store import ReleaseStore
from collegium.privacy.sensitivity import routing_sensitivity
from collegium.selection.pool import Pool, is_held_out, verify_pool


@dataclass(frozen=True)
class Plan:
    """What would leave: bytes by file (those of texts are upper bounds), and the ledger."""

    files: dict[str, int]
    ledger: list[Release]


def contribute(
    charter: Charter,
    recipe: OwnerRecipe,
    pool: Pool,
    seed: SeedModel,
    destination: Path,
    store: ReleaseStore,
    allow_overlap: bool = False,
    processes: int | None = None,
) -> Artifact:
    """Make the owner's contribution at `destination`; at once if it is there already, from the same inputs.

    Args:
        processes: most that select from shards at a time; changes the time alone.

    Raises:
        InputError: the charter does not name this owner, or names another seed model or pool.
        DataError: faulty private data, or classes that the charter does not name.
        ReleaseRefused: pool records like private ones (without `allow_overlap`), or a second routing release.
    """
    check_seed(charter, seed)
    check_pool(charter, pool)
    verify_pool(pool, seed)
    private = load_private(charter, recipe)
    check_modality(seed, private.texts, f"owner {recipe.name}")
    texts = [as_json(item) for item in private.texts]
    identity = sha256_of(
        canonical_json([charter.sha256, recipe.model_dump(mode="json"), texts, private.labels, allow_overlap])
    )
    finished = _finished(destination, store, identity)
    if finished is not None:
        return finished

    terms, layers = charter.terms, charter.routed_layers(seed.num_layers)
    chosen = choose_proxies(charter, recipe, pool, seed, private, store, allow_overlap, processes)
    if chosen.shortfall:
        say(f"{recipe.name}: {chosen.shortfall}")
    hashes = pool.hashes
    used = sorted(row for row in chosen.rows if not is_held_out(hashes[row], terms.held_out_one_in))
    proxies = pool.texts(used)

    routing: dict[int, Float64[np.ndarray, " dim"]] = {}
    if terms.router.vectors != "tuned":
        mixed = [*private.texts, *(proxies if terms.router.vectors == "seed" else [])]
        routing = dict(zip(layers, routing_vectors(seed, seed.architecture, mixed, layers), strict=True))
        _remember(store, charter, routing, private)

    labels = _labels(charter, recipe.name, private)
    with_head = terms.task == "label-head"
    if with_head:
        head = starting_rows(embed_texts(seed, private.texts), private.labels or [], labels)
        classes = head_classes(charter, pool, {recipe.name: head})
    else:
        classes = charter.classes(seed, hidden={recipe.name: labels})
    exercises = _training_set(charter, recipe.name, seed, private, pool, used, classes)
    head_rows = len(labels) if with_head else 0
    trained_on = [] if terms.training.alignment == "private" else [hashes[row] for row in used]
    expert = kept_expert(charter, recipe.name, seed, private, trained_on, exercises, store, head_rows)
    if terms.router.vectors == "tuned":
        mixed = [*private.texts, *proxies]
        tuned = dense_model(seed, full_expert(seed, expert.tensors, terms.training))
        routing = dict(zip(layers, routing_vectors(tuned, seed.architecture, mixed, layers), strict=True))
        _remember(store, charter, routing, private)

    ledger = _ledger(charter, recipe.name, seed, len(used), allow_overlap)
    artifact = write_contribution(
        destination,
        recipe.name,
        charter,
        expert.tensors,
        routing,
        [hashes[row] for row in chosen.rows],
        ledger,
        expert.head,
    )
    store.remember(f"contribution-{identity[:16]}", artifact.sha256)
    return artifact


def plan_contribution(charter: Charter, recipe: OwnerRecipe, seed: SeedModel, allow_overlap: bool = False) -> Plan:
    """What `contribute` would let out, without selecting or training: the private data are read and checked only.

    The number of proxies in the routing vectors is not known yet; the ledger is that of the largest, so the
    sensitivity in it is the smallest possible.
    """
    check_seed(charter, seed)
    check_modality(seed, load_private(charter, recipe).texts, f"owner {recipe.name}")
    ledger = _ledger(charter, recipe.name, seed, charter.terms.selection.size, allow_overlap)
    vectors = {f"layers.{layer}": (seed.dim,) for layer in charter.routed_layers(seed.num_layers)}
    sizes = {
        EXPERT: safetensors_bytes(expected_expert(charter, seed)),
        **({HEAD: safetensors_bytes(head)} if (head := expected_head(charter, recipe.name, seed)) else {}),
        ROUTING: safetensors_bytes(vectors),
        PROXIES: 35 * charter.terms.selection.size + 1,
        LEDGER: len(ledger_json(ledger)) + 16,  # the bound may take more digits with fewer proxies
    }
    return Plan({**sizes, CARD: 4096, MANIFEST: 4096}, ledger)


def _labels(charter: Charter, owner: str, private: Examples) -> list[str]:
    return charter.terms.owners[owner].labels or private.class_names


def _training_set(
    charter: Charter,
    owner: str,
    seed: SeedModel,
    private: Examples,
    pool: Pool,
    used: Sequence[int],
    classes: Classes,
) -> Exercises:
    alignment = charter.terms.training.alignment
    if alignment == "proxy":
        return proxy_exercises(charter, seed, pool, used, classes)
    own = private_exercises(charter, owner, seed, private, classes)
    return own if alignment == "private" else own + proxy_exercises(charter, seed, pool, used, classes)


def _remember(
    store: ReleaseStore, charter: Charter, routing: dict[int, Float64[np.ndarray, " dim"]], private: Examples
) -> None:
    vectors = b"".join(tensor.numpy().tobytes() for tensor in routing_tensors(routing).values())
    records = [sha256_of(normalised(text).encode()) for text in private.texts]  # a changed space is no new text
    store.check_and_record(charter.terms.project, sha256_of(vectors), records, mechanism="none")


def _ledger(charter: Charter, owner: str, seed: SeedModel, num_proxies: int, overlap_allowed: bool) -> list[Release]:
    router = charter.terms.router
    # Below the decision every layer is the seed's, so that there a tuned expert's vector is the seed's.
    vectors = "seed" if router.vectors == "tuned" and router.decide == "once" else router.vectors
    bounds = [norm_bound(seed, seed.architecture, layer) for layer in charter.routed_layers(seed.num_layers)]
    sensitivity = routing_sensitivity(bounds, 0 if vectors == "private" else num_proxies)
    routing = routing_release(vectors, sensitivity, num_proxies, bounds)
    published = charter.terms.owners[owner].labels is not None
    training = charter.terms.training
    return contribution_ledger(
        routing,
        published,
        training.alignment,
        training.steps is not None,
        overlap_allowed,
        head=charter.terms.task == "label-head",
        items="picture" if seed.modality == "image" else "text",
    )


def _finished(destination: Path, store: ReleaseStore, identity: str) -> Artifact | None:
    expected = store.recall(f"contribution-{identity[:16]}")
    if expected is None:
        return None
    try:
        artifact = read_artifact(destination, "contribution")
    except ArtifactError:
        return None
    return artifact if artifact.sha256 == expected else None
