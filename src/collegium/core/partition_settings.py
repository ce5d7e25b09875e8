"""Settings of a partition: how a labelled data set is shared out among the clients of a simulated federation."""

from typing import Literal

from pydantic import Field, model_validator

from collegium.core.settings import Settings

KINDS_WITH = {"alpha": ("dirichlet", "quantity-skew"), "classes_per_client": ("pathological",)}


class PartitionSettings(Settings):
    """A key that the kind needs must be there, and a key of another kind is an error: it would have no effect."""

    kind: Literal["iid", "dirichlet", "pathological", "by-domain", "quantity-skew"] = Field(
        description="iid = shuffled, equal sizes; dirichlet = equal sizes, each client has class shares of its own; "
        "pathological = each client has a few classes only; by-domain = each client has one domain; quantity-skew = "
        "shuffled, unequal sizes"
    )
    num_clients: int = Field(ge=1, description="clients that the examples are shared out among")
    min_examples: int = Field(default=10, ge=1, description="examples that every client gets at least")
    alpha: float | None = Field(
        default=None,
        ge=1e-9,
        le=1e9,
        description="dirichlet: near 0 = one class a client, large = every client like the whole (class shares follow "
        "a Dirichlet distribution whose parameter is alpha for every class); quantity-skew: near 0 = one client "
        "has nearly everything, large = equal sizes",
    )
    classes_per_client: int | None = Field(default=None, ge=1, description="pathological: classes of each client")

    @model_validator(mode="after")
    def _keys_of_the_kind(self) -> "PartitionSettings":
        faults = []
        for key, kinds in KINDS_WITH.items():
            value = getattr(self, key)
            if value is None and self.kind in kinds:
                faults.append(f"kind: {self.kind} needs {key}")
            if value is not None and self.kind not in kinds:
                faults.append(f"{key}: {value} is for kind {' or '.join(kinds)}, not for {self.kind}")
        if faults:
            raise ValueError("; ".join(faults))
        return self
