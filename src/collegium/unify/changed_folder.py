"""The folder of a unified model after a change of its owners, and what its card says of such changes.

Everything that is not an owner's own is taken over: the configuration, the tokenizer's files byte for byte, the card
but for its table and its count. Nothing else of the old folder is copied, so that nothing is copied unseen.
"""

import copy
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from collegium.core.artifacts import Artifact, canonical_json, read_artifact, writing
from collegium.models.tasks import Classes
from collegium.unify.merge import DTYPES
from collegium.unify.unified_folder import CARD, FACTS, KIND, LEDGER, UnifiedModel, write_classes

SECTION = "\n## Changes of membership\n"


def write_changed(
    unified: UnifiedModel,
    destination: Path,
    names: Sequence[str],
    ranks: Sequence[int | None] | None,
    state: Mapping[str, Tensor],
    classes: Classes,
    facts: Mapping[str, Any],
    ledger: Mapping[str, Any],
    inputs: dict[str, str],
    drop_row: str | None = None,
    add_row: str | None = None,
) -> Artifact:
    """Write the artifact.

    Args:
        names: the owners, in the order of the experts in `state`.
        ranks: of these experts, None for full ones; None = all are full, and `state` has no base.
        facts: the content of `collegium.json`.
        drop_row: the owner whose row leaves the card's table.
        add_row: a row for the end of it.
    """
    old = unified.encoder.model
    config = copy.deepcopy(old.config)
    config.expert_names, config._name_or_path = list(names), ""
    config.expert_ranks = None if ranks is None else list(ranks)
    model = type(old)(config)
    model.load_state_dict(dict(state), strict=True, assign=True)
    model.config.dtype = DTYPES[unified.artifact.settings["dtype"]]
    card = _card(unified, len(names), drop_row, add_row)
    notes = "".join(f"\n* {note}" for note in change_notes(facts))
    with writing(destination, KIND, inputs, unified.artifact.settings) as folder:
        model.save_pretrained(folder)
        for file in unified.encoder.tokenizer.save_pretrained(folder):
            name = Path(file).name
            if name in unified.artifact.files:  # loaded and saved, a tokenizer gets settings that it did not have
                shutil.copyfile(unified.artifact.path / name, folder / name)
        write_classes(folder, classes)
        (folder / FACTS).write_bytes(canonical_json(dict(facts)))
        (folder / LEDGER).write_bytes(canonical_json(dict(ledger)))
        (folder / CARD).write_text(f"{card}\n{SECTION}{notes}\n", encoding="utf-8")
    return read_artifact(destination, KIND)


def change_notes(facts: Mapping[str, Any]) -> list[str]:
    """What the changes of membership mean, a sentence each; the last is the newest.

    Args:
        facts: the content of `collegium.json`.
    """
    kept = facts["unification"]["joint_tuning"]["kept"]
    influence = (
        "the other experts and the routers were tuned jointly with its proxies"
        if kept
        else "its proxies had a part in the temperature of the routers"
    )
    notes = []
    for change in facts["unification"].get("membership", []):
        if change["change"] == "added":
            notes.append(
                f"`{change['owner']}` was added, with a router row in closed form; joint tuning was not run again."
            )
        elif change["taught_others"]:
            notes.append(
                f"An owner was removed. Of its influence this remains: {influence}. Only unifying the others' "
                "contributions again removes it."
            )
        else:
            notes.append("An owner who had been added later was removed; nothing of its influence remains.")
    return notes


def _card(unified: UnifiedModel, count: int, drop_row: str | None, add_row: str | None) -> str:
    """The old card with another count and table, without its section on changes."""
    card = (unified.artifact.path / CARD).read_text(encoding="utf-8").partition(SECTION)[0]
    card = re.sub(r"mixture of \d+ experts", f"mixture of {count} experts", card, count=1)
    lines = [line for line in card.splitlines() if drop_row is None or not line.startswith(f"| {drop_row} |")]
    if add_row is not None:
        last = max((index for index, line in enumerate(lines) if line.startswith("| ")), default=len(lines) - 1)
        lines.insert(last + 1, add_row)
    return "\n".join(lines)
