"""A recipe of federated rounds, simulated on one machine: data, clients, common expert, algorithm."""

from typing import Literal

from pydantic import Field, model_validator

from collegium.core.partition_settings import PartitionSettings
from collegium.core.recipe import Columns, DataSource, Name
from collegium.core.settings import Settings
from collegium.federated.make_algorithm import PERSONAL_ONLY, AlgorithmSettings
from collegium.federated.rounds import RoundSettings


class EvaluationSettings(Settings):
    """When and on whom a federation is evaluated."""

    every: int = Field(default=10, ge=1, description="rounds between two evaluations")
    averaged: int = Field(
        default=5,
        ge=1,
        description="last evaluations whose mean is reported: single ones swing by points; never the best",
    )
    clients: Literal["validation", "test"] = Field(
        default="test", description="held-out clients: choices are made on validation clients, reports on test clients"
    )
    protocol: Literal["zero-shot", "personal"] = Field(
        default="zero-shot",
        description="zero-shot = held-out clients are judged, as they are; personal = clients that train are, by "
        "examples of their own that they hold back, and held-out ones as newcomers",
    )
    own_share: float = Field(
        default=0.2,
        gt=0,
        lt=0.5,
        description="personal: share of a client's examples that judge the report; as many judge choices",
    )


class DomainSettings(Settings):
    """One of several data sets."""

    data: DataSource = Field(description="catalogue name, file, folder or hub name")
    columns: Columns = Columns()
    limit: int | None = Field(default=None, ge=1, description="most examples, drawn by random_seed; null = all")


class FederatedRecipe(Settings):
    """Everything that a simulated federation depends on."""

    project: Name = "federation"
    data: DataSource | None = Field(
        default=None, description="catalogue name, file, folder or hub name; all of it is shared out"
    )
    domains: dict[Name, DomainSettings] | None = Field(
        default=None,
        description="several data sets in place of data, columns and limit: what partition.kind: by-domain shares "
        "out. Classes of the same name are one class",
    )
    columns: Columns = Columns()
    limit: int | None = Field(default=None, ge=1, description="most examples, drawn by random_seed; null = all")
    common_expert: str = Field(
        description="frozen model whose embeddings the gate reads: a seed model, or efficientnet-lite0"
    )
    inputs: Literal["features", "pictures"] = Field(
        default="features", description="what experts read: the common expert's embeddings, or pictures themselves"
    )
    partition: PartitionSettings
    held_out_clients: float = Field(
        default=0.2,
        gt=0,
        lt=0.5,
        description="share of the clients that are test clients; as many are validation clients",
    )
    concept_groups: int = Field(
        default=1, ge=1, description="groups of clients for whom a class has different names; 1 = labels mean the same"
    )
    algorithm: AlgorithmSettings
    rounds: RoundSettings = RoundSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    random_seed: int = Field(default=0, ge=0, description="partition, clients, training; same seed, same result")

    @model_validator(mode="after")
    def _consistent(self) -> "FederatedRecipe":
        if (self.data is None) == (self.domains is None):
            raise ValueError("give either data or domains")
        if self.domains is None and self.partition.kind == "by-domain":
            raise ValueError("partition.kind: by-domain shares out domains; name them in domains, in place of data")
        if self.evaluation.protocol == "zero-shot" and self.algorithm.name in PERSONAL_ONLY:
            raise ValueError(f"algorithm.name: {self.algorithm.name} needs evaluation.protocol: personal")
        if self.domains is not None and (self.columns != Columns() or self.limit is not None):
            raise ValueError("columns and limit are of data; give each of the domains its own")
        return self
