"""A recipe of federated rounds on real nodes: what server and clients must agree on, and what is the server's alone."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from collegium.core.artifacts import canonical_json, sha256_of
from collegium.core.recipe import Columns, DataSource, Label, Name
from collegium.core.settings import Settings
from collegium.federated.make_algorithm import SIMULATED_ONLY, AlgorithmSettings
from collegium.federated.participation import ScheduleSettings
from collegium.federated.rounds import RoundSettings

AGREED = {"project", "classes", "common_expert", "inputs", "max_clients", "algorithm", "random_seed"}


class DeployedRecipe(Settings):
    """Every side has its own copy of the file; a client whose copy differs in what must be agreed takes no part."""

    project: Name = "federation"
    classes: Annotated[list[Label], Field(min_length=2)] = Field(
        description="names of all classes: the server has no data to find them in"
    )
    common_expert: str = Field(
        description="frozen model whose embeddings the gate reads: a seed model, or efficientnet-lite0"
    )
    inputs: Literal["features", "pictures"] = Field(
        default="features", description="what experts read: the common expert's embeddings, or pictures themselves"
    )
    max_clients: int = Field(ge=1, description="clients that may ever take part; their numbers start at 0")
    algorithm: AlgorithmSettings
    rounds: RoundSettings = RoundSettings()
    random_seed: int = Field(default=0, ge=0, description="of networks and training")
    columns: Columns = Field(default=Columns(), description="of the data that this side reads; need not be agreed")
    test: DataSource | None = Field(
        default=None, description="public labelled data on which the server judges; null = no accuracy"
    )
    judge_every: int = Field(default=10, ge=1, description="rounds between two judgements on the test data")

    @model_validator(mode="after")
    def _consistent(self) -> "DeployedRecipe":
        if self.algorithm.name in SIMULATED_ONLY:
            raise ValueError(f"algorithm.name: {self.algorithm.name} is for simulation alone, not for real nodes")
        if self.rounds.schedule != ScheduleSettings():
            raise ValueError("rounds.schedule is for simulation alone: real nodes come and go by themselves")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: a name stands there twice")
        return self

    @property
    def agreed(self) -> str:
        """Hash of what all sides must have in common."""
        return sha256_of(canonical_json(self.model_dump(mode="json", include=AGREED)))


class ServerSettings(Settings):
    """The run configuration of the Flower app; paths on the server's machine."""

    page: ClassVar[str] = "examples/deployment/README.md"
    recipe: str = Field(description="file of the recipe")
    out: str = Field(description="folder of checkpoint, metrics and model; the same one goes on")


class NodeSettings(Settings):
    """The configuration of a SuperNode; paths on its own machine."""

    page: ClassVar[str] = "examples/deployment/README.md"
    recipe: str = Field(description="file of the recipe, the client's own copy")
    data: str = Field(description="the client's labelled examples: a file or a folder")
    client: int = Field(ge=0, description="its number: always the same one, and nobody else's")
    folder: str = Field(description="private folder for features and states; only its owner may read it")
