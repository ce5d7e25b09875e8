"""Whole CLIPs in a merge: experts are in the vision tower; class names are read by the seed's text tower.

The merged folder holds the vision tower and its projection, as a unified one does. A fine-tune that changed the text
tower compares its pictures with names that nobody else reads so: that is refused, or left out knowingly.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from collegium.core.errors import IncompatibleExperts
from collegium.models.seed_model import WHOLE_CLIP
from collegium.moe.modeling import UNIFIED_CLASSES, CollegiumCLIPVisionModelWithProjection
from collegium.unify.checkpoint import Checkpoint, shortened
from collegium.unify.compatibility import Shared
from collegium.unify.stored_values import equal

TEXT_TOWER = ("text_model.", "text_projection.", "logit_scale")


def vision_towers(
    seed: Checkpoint, experts: Mapping[str, Checkpoint], shared: Shared
) -> tuple[Checkpoint, dict[str, Checkpoint], list[str]]:
    """Seed and experts without their text towers, and what is to be said of these, for terminal and model card.

    What is no whole CLIP stays as it is.

    Raises:
        IncompatibleExperts: a text tower that is not the seed's, unless `shared` says what is to be done.
    """
    if not is_whole_clip(seed):
        return seed, dict(experts), []
    notes = []
    for name, expert in experts.items():
        changed = [
            key
            for key, tensor in seed.tensors.items()
            if key.startswith(TEXT_TOWER) and key in expert.tensors and not equal(tensor, expert.tensors[key])
        ]
        if changed:
            notes.append(f"{name} changed {len(changed)} tensors of the text tower: {shortened(changed)}")
    if notes and shared == "refuse":
        raise IncompatibleExperts(
            "The experts cannot be merged:\n    " + "\n    ".join(notes),
            do="use --shared seed or --shared average: class names are then read by the seed's text tower",
        )
    towers = {name: _vision_tower(expert) for name, expert in experts.items()}
    return _vision_tower(seed), towers, [f"{note}; class names are read by the seed's" for note in notes]


def is_whole_clip(seed: Checkpoint) -> bool:
    """Whether a folder holds both towers."""
    return seed.config.get("model_type") == WHOLE_CLIP


def merged_class(seed: Checkpoint) -> Any:
    """The class of the merged model; None for a family that is not supported."""
    if is_whole_clip(seed):
        return CollegiumCLIPVisionModelWithProjection
    return UNIFIED_CLASSES.get(str(seed.config.get("model_type")), (None, None))[1]


def _vision_tower(checkpoint: Checkpoint) -> Checkpoint:
    kept = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(TEXT_TOWER)}
    return replace(checkpoint, tensors=kept)
