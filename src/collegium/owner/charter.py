"""The charter: what everybody agrees on before anything is trained.

It names the seed model and the pool by fingerprint, the class names of every owner that publishes them, and all
settings that two machines must share. Owners pin its hash; a contribution made under another charter is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from collegium.core.artifacts import Artifact, canonical_json, read_artifact, writing
from collegium.core.errors import ArtifactError, IncompatibleSeedModel, RecipeError
from collegium.core.recipe import CAUSAL, Agreement, Label, Name, Recipe, Settings
from collegium.models.choices import Choices
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import Classes, class_set
from collegium.moe.architectures import CONTEXTS
from collegium.selection.pool import Pool

CHARTER = "charter.json"
POOL_DOMAIN = ":pool"  # no owner can have this name


class OwnerEntry(Settings):
    prompt: str = Field(description="sentence around a class name, with {label}; of a decoder, the whole prompt")
    labels: list[Label] | None = Field(
        description="class names; null = the owner keeps them private, or has none: choices of its own, or plain texts"
    )


class Terms(Agreement):
    """The content of `charter.json`."""

    project: Name
    seed_model: str = Field(description="fingerprint")
    pool: str = Field(description="sha256 of the pool's manifest")
    owners: dict[Name, OwnerEntry]
    pool_prompt: str | None
    pool_labels: list[str]
    held_out_one_in: int = Field(
        default=10, ge=2, description="pool items held out, by content hash, before any selection"
    )


@dataclass(frozen=True)
class Charter:
    """A charter on disk, with its terms."""

    artifact: Artifact
    terms: Terms

    @property
    def sha256(self) -> str:
        return self.artifact.sha256

    @property
    def owners(self) -> list[str]:
        return list(self.terms.owners)

    def routed_layers(self, num_layers: int) -> list[int]:
        """Layers with a router: one routing vector each leaves an owner."""
        router = self.terms.router
        return [router.decide_layer] if router.decide == "once" else list(range(num_layers))

    def trained_layers(self, num_layers: int) -> list[int]:
        """Layers whose FFN is trained: below the decision every text takes the seed's."""
        router = self.terms.router
        return list(range(router.decide_layer if router.decide == "once" else 0, num_layers))

    def classes(self, seed: SeedModel, hidden: Mapping[str, Sequence[str]] | None = None) -> Classes:
        """The class names that compete: the published ones and, where known here, `hidden` ones of an owner."""
        labels = {name: entry.labels or (hidden or {}).get(name) for name, entry in self.terms.owners.items()}
        domains = {name: (self.terms.owners[name].prompt, found) for name, found in labels.items() if found}
        if self.terms.task in CAUSAL:
            names = tuple((name, label) for name, (_, own) in domains.items() for label in own)
            return Choices(names, {name: prompt for name, (prompt, _) in domains.items()})
        if self.terms.pool_prompt is not None:
            domains[POOL_DOMAIN] = (self.terms.pool_prompt, self.terms.pool_labels)
        return class_set(seed, domains, self.terms.training.logit_scale)

    @property
    def pool_domain(self) -> str | None:
        return POOL_DOMAIN if self.terms.pool_prompt is not None or self.terms.task == "label-head" else None


def write_charter(
    path: Path, recipe: Recipe, seed: SeedModel, pool: Pool, labels: Mapping[str, Sequence[str]]
) -> Charter:
    """Write the charter of a recipe.

    Args:
        labels: class names of every owner that publishes them.

    Raises:
        RecipeError: an owner that publishes labels has none; a layer that the seed does not have; a context that it
            cannot have; too few owners for experts_per_token; a task that the seed or the owners' terms do not allow.
    """
    _check_task(recipe, seed, pool)
    router = recipe.router
    if router.decide == "once" and router.decide_layer >= seed.num_layers:
        raise RecipeError(
            "router.decide_layer is beyond the seed model.",
            got=router.decide_layer,
            expected=f"0 to {seed.num_layers - 1}",
        )
    contexts = CONTEXTS[seed.architecture.kind]
    if router.context not in contexts:
        raise RecipeError(
            f"router.context does not fit the seed model, a model of kind {seed.architecture.kind}.",
            got=router.context,
            expected=f"one of {', '.join(contexts)}",
        )
    if router.warmup > 0 and router.context != "causal":  # of a context that was not chosen, the settings do not know
        raise RecipeError(
            "router.warmup_tokens is for context: causal.", got=router.warmup, expected=f"0 with {router.context}"
        )
    if router.experts_per_token > len(recipe.owners) + router.fallback:
        raise RecipeError(
            "router.experts_per_token is more than there are experts.",
            got=router.experts_per_token,
            expected=f"at most {len(recipe.owners) + router.fallback}",
        )
    owners = {}
    for name, owner in recipe.owners.items():
        publishes = owner.publish_labels and recipe.task != "causal-text" and owner.columns.choices is None
        if publishes and not labels.get(name):
            raise RecipeError(
                f"owners.{name}.labels: the class names are not known.",
                do="list them, set publish_labels: false for an owner who keeps them private, or name its "
                "columns.choices where every example has choices of its own",
            )
        owners[name] = OwnerEntry(prompt=recipe.prompt_of(name), labels=list(labels[name]) if publishes else None)
    terms = Terms(
        **recipe.agreement.model_dump(exclude={"max_length"}),
        max_length=seed.max_length,
        project=recipe.project,
        seed_model=seed.fingerprint,
        pool=pool.artifact.sha256,
        owners=owners,
        pool_prompt=pool.prompt,
        pool_labels=pool.labels if pool.prompt and recipe.task not in CAUSAL else [],
    )
    inputs = {"seed_model": seed.fingerprint, "pool": pool.artifact.sha256}
    with writing(path, "charter", inputs, {"project": recipe.project}) as folder:
        (folder / CHARTER).write_bytes(canonical_json(terms.model_dump(mode="json")))
    return read_charter(path)


def _check_task(recipe: Recipe, seed: SeedModel, pool: Pool) -> None:
    if seed.has_head != (recipe.task in CAUSAL):
        raise RecipeError(
            f"task: {recipe.task} does not fit the seed model.",
            got="a decoder with its head for language modelling" if seed.has_head else "a model without such a head",
            expected=" or ".join(f"task: {task}" for task in CAUSAL)
            if seed.has_head
            else f"a decoder saved with its head (…ForCausalLM) for task: {recipe.task}",
        )
    if recipe.task == "label-matching" and seed.names_reader.modality == "image":
        raise RecipeError(
            "The seed model reads no class names.",
            got=f"task {recipe.task}",
            expected="task: label-head, or a whole CLIP model, with its text tower",
        )
    if recipe.task != "label-head":
        return
    silent = [name for name, owner in recipe.owners.items() if not owner.publish_labels]
    if silent:
        raise RecipeError(
            f"owners.{silent[0]}.publish_labels: with task: label-head the rows of the head travel, and say how many "
            "classes there are.",
            expected="published labels",
        )
    if pool.prompt is not None:
        raise RecipeError("pool.prompt says nothing with task: label-head.", expected="a pool without a prompt")


def read_charter(path: Path) -> Charter:
    """Open a charter.

    Raises:
        ArtifactError: no intact charter, or terms that this version does not understand.
    """
    artifact = read_artifact(path, "charter")
    if CHARTER not in artifact.files:  # or the hash that owners pin would not cover the terms
        raise ArtifactError(f"The manifest of {path} does not name {CHARTER}.", do="get the charter again")
    try:
        values: Any = json.loads((artifact.path / CHARTER).read_bytes())
        return Charter(artifact, Terms.model_validate(values))
    except (OSError, ValueError, ValidationError, RecursionError) as error:
        raise ArtifactError(f"The terms in {path} are malformed.", got=str(error).splitlines()[0]) from None


def check_seed(charter: Charter, seed: SeedModel) -> None:
    """Refuse a seed model that is not the charter's.

    Raises:
        IncompatibleSeedModel: with both fingerprints.
    """
    if seed.fingerprint != charter.terms.seed_model:
        raise IncompatibleSeedModel(
            "The seed model is not the one that the charter names.",
            got=seed.fingerprint,
            expected=charter.terms.seed_model,
            do="get the seed model from the coordinator; experts of different seeds cannot be unified",
        )


def check_pool(charter: Charter, pool: Pool) -> None:
    """Refuse a pool that is not the charter's.

    Raises:
        ArtifactError: with both hashes.
    """
    if pool.artifact.sha256 != charter.terms.pool:
        raise ArtifactError(
            f"{pool.artifact.path} is not the pool that the charter names.",
            got=pool.artifact.sha256,
            expected=charter.terms.pool,
            do="get the pool from the coordinator again",
        )
