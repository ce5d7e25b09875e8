"""Adds an owner to a unified model, or removes one, without the others' data or contributions.

Both write a new artifact; the model that they start from stays as it is. An expert's tensors, a row of every router,
class names and embeddings, and the lines of ledger and card are an owner's own, so they come and go alone, bit for bit.

    add       the row is the closed form of `unify` (router_init) on the same pool; joint tuning is not run again
    remove    what is left answers as the whole model does after `set_active_experts` of the rest

What the owner taught others stays: its proxies took part in joint tuning, if that was kept, and in the temperature of
the routers. Only unifying the others' contributions again removes that; the card says so.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from collegium.core.artifacts import MANIFEST, Artifact
from collegium.core.errors import ArtifactError, InputError, InvalidContribution
from collegium.core.progress import say
from collegium.models.expert_tensors import materialised, rank_of
from collegium.models.seed_model import SeedModel
from collegium.models.tasks import Classes, prompted_names
from collegium.moe.architectures import layers_path
from collegium.owner.charter import Charter, check_pool, check_seed
from collegium.owner.validate import read_contribution
from collegium.selection.pool import Pool
from collegium.unify.changed_folder import write_changed
from collegium.unify.judge import flag_experts
from collegium.unify.merge import DTYPES, stored_name
from collegium.unify.routed_model import Ingredients, gather
from collegium.unify.router_init import initial_router
from collegium.unify.unified_folder import CARD, FACTS, LEDGER, UnifiedModel, read_unified
from collegium.unify.unify import ROUTER_SETTINGS

CENTRE_TOLERANCE = 1e-5  # of a router's centre, kept in float32, to the pool's mean


def remove_owner(model: Path, owner: str, destination: Path) -> Artifact:
    """Write the model without an owner: no tensor, class, ledger entry or name of it is in the new folder.

    A name that is a common word may still be one of the tokenizer's; where others use it, that is said.

    Raises:
        InputError: the model has no such owner, or too few experts would be left.
        ArtifactError: no intact unified model, or one of a kind that cannot be changed yet.
    """
    unified = _open(model, destination)
    config = unified.encoder.model.config
    names = list(config.expert_names)
    if owner not in names:
        raise InputError("The model has no expert of this owner.", got=owner, expected=", ".join(names))
    least = max(1, config.experts_per_token - config.fallback)
    if len(names) - 1 < least:
        raise InputError(
            f"Too few experts would be left without {owner}.",
            got=len(names) - 1,
            expected=f"at least {least} (experts_per_token is {config.experts_per_token})",
        )
    index = names.index(owner)
    classes = unified.classes.take([row for row, (domain, _) in enumerate(unified.classes.names) if domain != owner])
    earlier = unified.facts["unification"].get("membership", [])
    late = any(change.get("owner") == owner for change in earlier)
    flags = [flag for flag in unified.facts["unification"]["flags"] if not flag.startswith(f"{owner}'s ")]
    changes = [change for change in earlier if change.get("owner") != owner]
    facts = _changed(unified, classes, flags, [*changes, {"change": "removed", "taught_others": not late}])
    facts["prompts"] = {name: prompt for name, prompt in facts["prompts"].items() if name != owner}
    ledger = _ledger(unified)
    ledger.pop(owner, None)
    inputs = {key: value for key, value in unified.artifact.inputs.items() if key.partition(":")[2] != owner}
    state = {}
    for name, tensor in unified.encoder.model.state_dict().items():
        moved = _moved(name, lambda place: None if place == index else place - (place > index))
        if moved is not None:
            own_row = name.endswith((".router.weight", ".router.bias"))
            state[moved] = torch.cat([tensor[:index], tensor[index + 1 :]]) if own_row else tensor
    names.remove(owner)
    ranks = None if config.expert_ranks is None else [*config.expert_ranks[:index], *config.expert_ranks[index + 1 :]]
    written = write_changed(unified, destination, names, ranks, state, classes, facts, ledger, inputs, drop_row=owner)
    _say_where_the_word_stands(written, owner)
    return written


def add_owner(
    model: Path, contribution: Path, charter: Charter, pool: Pool, seed: SeedModel, destination: Path
) -> Artifact:
    """Write the model with one more owner, from its contribution alone.

    Args:
        charter: the one that the contribution was made under: the model's own, or one with the same settings.

    Raises:
        IncompatibleSeedModel, ArtifactError: a seed model or pool that is not the charter's or not the model's.
        InvalidContribution: a contribution that must not be merged, or of an owner who is there already.
    """
    check_seed(charter, seed)
    check_pool(charter, pool)
    unified = _open(model, destination)
    _check_same(unified, charter, seed)
    checked = read_contribution(contribution, charter, pool, seed)
    config = unified.encoder.model.config
    owner, names = checked.owner, list(config.expert_names)
    if owner in names:
        raise InvalidContribution(
            f"The model has an expert of {owner} already.", do="remove it first, or unify the contributions again"
        )
    ingredients = gather(charter, seed, pool, [checked])
    classes = _with_classes_of(owner, unified, charter, ingredients.classes)
    flags = [*unified.facts["unification"]["flags"], *flag_experts(ingredients)]
    earlier = unified.facts["unification"].get("membership", [])
    facts = _changed(unified, classes, flags, [*earlier, {"change": "added", "owner": owner}])
    facts["prompts"] = {**facts["prompts"], owner: charter.terms.owners[owner].prompt}
    ledger = {**_ledger(unified), owner: checked.ledger}
    inputs = {
        **unified.artifact.inputs,
        f"charter:{owner}": charter.sha256,
        f"contribution:{owner}": checked.artifact.sha256,
    }
    keeps_factors = config.expert_ranks is not None
    expert = ingredients.experts[owner] if keeps_factors else materialised(seed, ingredients.experts[owner])
    ranks = [*config.expert_ranks, rank_of(expert)] if keeps_factors else None
    state = _state_with(unified, ingredients, expert)
    row = f"| {owner} | `{checked.artifact.sha256[:16]}` | {', '.join(str(e.get('what')) for e in checked.ledger)} |"
    return write_changed(
        unified, destination, [*names, owner], ranks, state, classes, facts, ledger, inputs, add_row=row
    )


def _open(model: Path, destination: Path) -> UnifiedModel:
    if destination.resolve() == model.resolve():
        raise InputError("A model is never changed in place.", got=destination, do="name another folder with --out")
    return read_unified(model)


def _check_same(unified: UnifiedModel, charter: Charter, seed: SeedModel) -> None:
    """Refuse a charter with another router, and a seed model that this model was not made of."""
    config, router = unified.encoder.model.config, charter.terms.router
    fields = ("decide", "decide_layer", "context", "experts_per_token", "weighting", "fallback")
    differing = [name for name in fields if getattr(config, name) != getattr(router, name)]
    differing += ["warmup_tokens"] if config.warmup_tokens != router.warmup else []
    facts = unified.facts["unification"]
    known = {"init": facts["router_init"], **facts.get("router_settings", {})}  # older models do not have all of them
    differing += [name for name in ("init", *ROUTER_SETTINGS) if name in known and getattr(router, name) != known[name]]
    if differing:
        raise ArtifactError(
            "The charter's router is not the model's.",
            got=", ".join(f"router.{name}" for name in differing) + " differ",
            do="let the owner contribute under a charter with the model's settings",
        )
    state, own = unified.encoder.model.state_dict(), seed.model.state_dict()
    for name, tensor in own.items():
        if name in state and not torch.equal(state[name], tensor.to(state[name].dtype)):
            raise ArtifactError(
                "The model was made of another seed model than the charter's.",
                got=f"another {name}",
                do="let the owner contribute under a charter with the model's seed",
            )


def _with_classes_of(owner: str, unified: UnifiedModel, charter: Charter, contributed: Classes) -> Classes:
    """The model's classes, and those that the owner publishes; two with the same prompted name are refused.

    They are there already where the model's own charter names the owner.
    """
    known, prompts, entry = unified.classes, unified.facts["prompts"], charter.terms.owners[owner]
    if not entry.labels or owner in known.domains:
        return known
    if charter.terms.task == "label-matching":
        domains = {name: (prompts[name], [label for of, label in known.names if of == name]) for name in known.domains}
        prompted_names({**domains, owner: (entry.prompt, entry.labels)})
    return known + contributed.take(contributed.of(owner))


def _state_with(unified: UnifiedModel, ingredients: Ingredients, expert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the new owner's expert and router rows after those of the other owners, before the seed's."""
    model, seed, terms = unified.encoder.model, ingredients.seed, ingredients.charter.terms
    place = len(model.config.expert_names)
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        moved = _moved(name, lambda index: index + (index >= place))
        assert moved is not None
        state[moved] = tensor
    dtype = DTYPES[unified.artifact.settings["dtype"]]
    layers = layers_path(model, seed.architecture)
    for neutral, tensor in expert.items():
        layer, name = stored_name(neutral)
        state[f"{layers}.{layer}.{seed.architecture.ffn}.experts.{place}.{name}"] = tensor.to(dtype)
    for statistics, layer in zip(ingredients.statistics, sorted(model.routers), strict=True):
        vector = ingredients.contributions[0].routing[layer]
        weights = initial_router(terms.router.init, np.stack([vector]), statistics, terms.router.shrinkage, None)
        router = f"{layers}.{layer}.{seed.architecture.ffn}.router"
        centre = state[f"{router}.centre"].double().numpy()
        if np.abs(centre - weights.centre).max() > CENTRE_TOLERANCE * max(1.0, np.abs(centre).max()):
            raise ArtifactError(
                "The pool is not the one that the model's routers were made with.",
                got=ingredients.pool.artifact.sha256,
                do="let the owner contribute under a charter with the model's pool",
            )
        rows = {"weight": torch.from_numpy(weights.weight).float(), "bias": torch.from_numpy(weights.bias).float()}
        for part, row in rows.items():
            old = state[f"{router}.{part}"]
            state[f"{router}.{part}"] = torch.cat([old[:place], row, old[place:]])
    return state


def _moved(name: str, place: Callable[[int], int | None]) -> str | None:
    """The name of a tensor once its expert stands elsewhere; None where the expert is gone."""
    before, found, after = name.partition(".experts.")
    if not found:
        return name
    index, _, matrix = after.partition(".")
    new = place(int(index))
    return None if new is None else f"{before}.experts.{new}.{matrix}"


def _changed(
    unified: UnifiedModel, classes: Classes, flags: Sequence[str], changes: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    unification = {**unified.facts["unification"], "flags": list(flags), "membership": list(changes)}
    return {**unified.facts, "classes": [list(name) for name in classes.names], "unification": unification}


def _say_where_the_word_stands(artifact: Artifact, owner: str) -> None:
    """An owner's name may be a word that others use: in the project's name, a prompt, a class."""
    word = re.compile(rf"(?<![\w-]){re.escape(owner)}(?![\w-])")
    files = [name for name in (FACTS, LEDGER, CARD, MANIFEST) if word.search((artifact.path / name).read_text("utf-8"))]
    if files:
        say(f"warning: the word {owner} is still in {', '.join(files)}: the project or another owner uses it")


def _ledger(unified: UnifiedModel) -> dict[str, Any]:
    return json.loads((unified.artifact.path / LEDGER).read_bytes())
