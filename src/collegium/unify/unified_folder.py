"""The folder of a unified model: what transformers needs, and what `predict` and `evaluate` need beside it.

config.json, model.safetensors, tokenizer or image processor, *.py    loads with AutoModel, with or without this package
collegium.json                class names, pooling, scale, owners, how it was unified
class_embeddings.safetensors  the seed's embeddings of the class names, or the owners' rows of the head: answering
                              needs no seed model
ledger.json                   what each owner released
README.md                     the model card
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from collegium.core.artifacts import Artifact, canonical_json, read_artifact, writing
from collegium.core.errors import ArtifactError
from collegium.core.recipe import CAUSAL
from collegium.data.items import Modality
from collegium.models.choices import Choices
from collegium.models.encoder import Encoder
from collegium.models.seed_model import auto_class, load_tokenizer
from collegium.models.tasks import Classes, ClassSet
from collegium.owner.charter import Charter
from collegium.owner.validate import Contribution
from collegium.unify.merge import DTYPES

FACTS, CLASSES, LEDGER, CARD = "collegium.json", "class_embeddings.safetensors", "ledger.json", "README.md"
KIND = "unified-model"


@dataclass(frozen=True)
class UnifiedModel:
    """A unified model on disk, loaded.

    Attributes:
        facts: the content of `collegium.json`.
    """

    artifact: Artifact
    encoder: Encoder
    classes: Classes
    facts: dict[str, Any]

    @property
    def experts(self) -> list[str]:
        """Names of what a token may run through, the seed's own FFN under `seed`."""
        return self.encoder.model.config.choices


def write_unified(
    path: Path,
    model: Any,
    encoder: Encoder,
    classes: Classes,
    charter: Charter,
    contributions: Sequence[Contribution],
    facts: Mapping[str, Any],
) -> Artifact:
    """Write the folder; the router stays float32 whatever the charter's output dtype."""
    dtype = DTYPES[charter.terms.output_dtype]
    for name, parameter in model.named_parameters():
        if ".router." not in name:
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    description = {
        "project": charter.terms.project,
        "task": charter.terms.task,
        "random_seed": charter.terms.random_seed,
        "pooling": encoder.pooling,
        "max_length": encoder.max_length,
        "logit_scale": charter.terms.training.logit_scale,
        "classes": [list(name) for name in classes.names],
        "prompts": {name: entry.prompt for name, entry in charter.terms.owners.items()},
        "unification": dict(facts),
    }
    with writing(path, KIND, unified_inputs(charter, contributions), {"dtype": charter.terms.output_dtype}) as folder:
        model.save_pretrained(folder)
        encoder.tokenizer.save_pretrained(folder)
        write_classes(folder, classes)
        (folder / FACTS).write_bytes(canonical_json(description))
        (folder / LEDGER).write_bytes(canonical_json({one.owner: one.ledger for one in contributions}))
        (folder / CARD).write_text(_card(charter, contributions, facts, encoder.modality), encoding="utf-8")
    return read_artifact(path, KIND)


def unified_inputs(charter: Charter, contributions: Sequence[Contribution]) -> dict[str, str]:
    """What a unified model is made of, by hash."""
    return {
        "charter": charter.sha256,
        **{f"contribution:{one.owner}": one.artifact.sha256 for one in contributions},
    }


def read_unified(path: Path) -> UnifiedModel:
    """Load a unified model with this package's own classes (never with code from the folder).

    Raises:
        ArtifactError: no intact unified model.
    """
    artifact = read_artifact(path, KIND)
    try:
        facts = json.loads((artifact.path / FACTS).read_bytes())
        kind = auto_class(AutoConfig.from_pretrained(artifact.path, trust_remote_code=False))
        model = kind.from_pretrained(artifact.path, trust_remote_code=False, use_safetensors=True)
        tokenizer = load_tokenizer(artifact.path, model)
        classes = _read_classes(artifact.path, facts)
        encoder = Encoder(model.eval().requires_grad_(False), tokenizer, facts["pooling"], facts["max_length"])
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{path} cannot be loaded.", got=str(error).splitlines()[0]) from None
    return UnifiedModel(artifact, encoder, classes, facts)


def write_classes(folder: Path, classes: Classes) -> None:
    """The embeddings of the classes, where they have any; their names stand in the facts."""
    if isinstance(classes, ClassSet):
        save_file({"embeddings": classes.embeddings}, folder / CLASSES)


def _read_classes(folder: Path, facts: Mapping[str, Any]) -> Classes:
    names = tuple((domain, label) for domain, label in facts["classes"])
    if facts["task"] in CAUSAL:
        return Choices(names, {domain: facts["prompts"][domain] for domain, _ in names})
    return ClassSet(names, load_file(folder / CLASSES)["embeddings"], facts["logit_scale"])


READERS = {  # what the card says of a model: its class, what prepares its input, its tag
    "text": ("AutoModel", "AutoTokenizer", "sentence-encoder"),
    "image": ("AutoModel", "AutoImageProcessor", "image-encoder"),
    "decoder": ("AutoModelForCausalLM", "AutoTokenizer", "text-generation"),
}


def _card(charter: Charter, contributions: Sequence[Contribution], facts: Mapping[str, Any], modality: Modality) -> str:
    router = charter.terms.router
    kind, reader, tag = READERS["decoder" if charter.terms.task in CAUSAL else modality]
    lines = [
        "---",
        "library_name: transformers",
        f"tags: [mixture-of-experts, collegium, {tag}]",
        "---",
        f"# {charter.terms.project}",
        "",
        f"One mixture of {len(contributions)} experts, unified by Collegium from contributions whose private data "
        "never left their owners.",
        "",
        "| expert | contribution | what left the owner |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {one.owner} | `{one.artifact.sha256[:16]}` | {', '.join(str(entry.get('what')) for entry in one.ledger)} |"
        for one in contributions
    ]
    training = charter.terms.training
    kept = (
        f"Experts: changes of rank {training.rank} beside the seed's own feed-forward networks."
        if training.parameters == "lora"
        else "Experts: whole feed-forward networks."
    )
    lines += [
        "",
        kept,
        f"Router: `{router.init}`, decided {router.decide}, context `{router.context}`; charter "
        f"`{charter.sha256[:16]}`. Joint tuning was {'kept' if facts['joint_tuning']['kept'] else 'not kept'}.",
        "No protection mechanism was applied where the ledger says ε = infinity; see `ledger.json`.",
        "",
        "```python",
        f"from transformers import {kind}, {reader}",
        f"model = {kind}.from_pretrained(folder, trust_remote_code=True)  # or: import collegium",
        "```",
        "",
    ]
    return "\n".join(lines)
