"""The release ledger: for everything that leaves an owner, what it is made of and what it may tell.

`mechanism: none` means ε = ∞, printed as such. Nothing here depends on the number of private examples.
"""

import math
from collections.abc import Sequence

from pydantic import Field

from collegium.core.artifacts import canonical_json
from collegium.core.recipe import Settings

UNIT = "one private example (replace-one)"


class Release(Settings):
    """One line of the ledger."""

    what: str
    file: str = Field(description="where it stands; empty = in the charter")
    from_data: str
    unit: str = UNIT
    sensitivity: str
    mechanism: str = "none"
    epsilon: str = Field(default="infinity", description="ε at the charter's δ; infinity = no protection is claimed")
    reveals: str


def routing_release(vectors: str, sensitivity: float, num_proxies: int, norm_bounds: Sequence[float]) -> Release:
    """The ledger line of the routing vectors.

    Args:
        vectors: `router.vectors` of the charter.
        sensitivity: L2, see `routing_sensitivity`.
    """
    bound = math.sqrt(sum(value * value for value in norm_bounds))
    if vectors == "seed":
        made_of = f"private examples and {num_proxies} public proxies, in the seed's pass"
        limit = f"2B/m = {sensitivity:.4g} (B = {bound:.4g}, m = {num_proxies})"
        tells = (
            "a mean in which private examples and known proxies are mixed in a proportion that is not released: the "
            "private mean lies on a known line. A second release with other proxies would give it exactly"
        )
    elif vectors == "private":
        made_of, limit = (
            "private examples alone, in the seed's pass",
            f"2B/N, at most {sensitivity:.4g}; N is not released",
        )
        tells = "the mean of the private examples' hidden states"
    else:
        made_of = f"private examples and {num_proxies} public proxies, in the tuned expert's pass"
        limit = "no bound is known: the encoder itself depends on the private data"
        tells = "a mean of hidden states of an encoder that was trained on the private examples"
    return Release(
        what="routing vectors",
        file="routing.safetensors",
        from_data=made_of,
        sensitivity=limit,
        reveals=tells,
    )


def head_release() -> Release:
    """The ledger line of an owner's rows of the head."""
    return Release(
        what="rows of the head",
        file="head.safetensors",
        from_data="private examples: a row starts as the mean of the seed's embeddings of its class, and is trained",
        sensitivity="no bound is known",
        reveals="for each class a direction close to the mean of its private examples, as the seed sees them",
    )


def contribution_ledger(
    routing: Release,
    labels_published: bool,
    alignment: str,
    fixed_steps: bool,
    overlap_allowed: bool,
    head: bool = False,
    items: str = "text",
) -> list[Release]:
    """All releases of one contribution, and of the owner's part of the charter.

    Args:
        alignment: `training.alignment` of the charter.
        fixed_steps: whether every owner trains the same number of steps (`training.steps`).
        overlap_allowed: whether the owner let pool records pass that are equal or close to private ones.
        head: whether the contribution holds rows of a head.
        items: what an item is called: text or picture.
    """
    # With fixed steps no distance tells the number; the private share of the batches still has a part in the weights.
    degree = "weakly" if fixed_steps else "roughly"
    number = "" if alignment == "proxy" else f", and {degree} how many private examples there were"
    copies = f"; that a public {items} may be among the private ones" if overlap_allowed else ""
    trained_on = {"both": "private examples and public proxies", "private": "private examples"}.get(
        alignment, "public proxies, which were chosen with the private examples"
    )
    entries = [
        Release(
            what="indices of the selected proxies",
            file="proxies.json",
            from_data="the similarity of public items to private examples",
            sensitivity="no bound is known",
            reveals=f"which public {items}s are like the private ones: the topics, not the {items}s{copies}",
        ),
        Release(
            what="weights of the expert's feed-forward networks",
            file="expert.safetensors",
            from_data=trained_on,
            sensitivity="no bound is known",
            reveals=f"what fine-tuned weights can tell, possibly that a {items} was in the training data{number}",
        ),
        *([head_release()] if head else []),
        routing,
    ]
    if labels_published:
        entries.append(
            Release(
                what="class names",
                file="",
                from_data="the label column",
                sensitivity="not applicable: the owner agreed to the names",
                reveals="which classes the owner distinguishes",
            )
        )
    return entries


def ledger_json(entries: Sequence[Release]) -> bytes:
    return canonical_json([entry.model_dump(mode="json") for entry in entries])
