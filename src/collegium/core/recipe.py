"""Every setting of Collegium, as data: frozen pydantic models, one for each stage.

A recipe is one YAML file. An unknown key is an error, all faults are reported together, and `--set key=value`
overrides any value. The description of a field is its help. `ridge` is the λ of the determinantal point process
(METHODS §1, stage 1), `context_weight` is the λ of the router (stage 3).
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from collegium.core.errors import RecipeError
from collegium.core.router_settings import RouterSettings
from collegium.core.settings import Settings

Task = Literal["label-matching", "label-head", "causal-choice", "causal-text"]
CAUSAL: tuple[Task, ...] = ("causal-choice", "causal-text")  # tasks of decoders with their head
DEFAULT_PROMPTS: dict[Task, str] = {
    "label-matching": "{label}",
    "label-head": "{label}",
    "causal-choice": "{text}\nAnswer: {label}",
    "causal-text": "{text}",
}

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]


class Columns(Settings):
    text: str | Annotated[list[str], Field(min_length=1)] = Field(
        default="text", description="column that holds the text; of a list, the cells that are not empty, one a line"
    )
    image: str | None = Field(
        default=None,
        description="column that holds a picture (its bytes, or its path relative to the file); then text is not read",
    )
    label: str | None = Field(default="label", description="column that holds the class name; null = no labels")
    choices: str | Annotated[list[str], Field(min_length=2)] | None = Field(
        default=None,
        description="for examples with choices of their own (causal-choice): column that holds a list of answers, or a "
        "column for each answer. The label then names the right one: its text, its key in {label, text}, its letter "
        "from A, or its number",
    )
    first_choice: Literal[0, 1] = Field(default=0, description="number of the first choice, where the label is one")

    @model_validator(mode="after")
    def _choices_are_of_texts(self) -> "Columns":
        if self.choices is not None and self.image is not None:
            raise ValueError("choices are for texts; leave out choices or image")
        return self

    def of_task(self, task: Task) -> "Columns":
        """Without labels and choices where the task has none.

        Raises:
            RecipeError: choices for a task in which class names compete.
        """
        if task == "causal-text":
            return self.model_copy(update={"label": None, "choices": None})
        if self.choices is not None and task != "causal-choice":
            raise RecipeError("columns.choices does not fit the task.", got=task, expected="task: causal-choice")
        return self

    @property
    def items(self) -> list[str]:
        """The columns that hold what the model reads; of pictures one."""
        if self.image is not None:
            return [self.image]
        return [self.text] if isinstance(self.text, str) else self.text

    @property
    def answers(self) -> list[str]:
        """The columns that hold an example's own choices."""
        return [self.choices] if isinstance(self.choices, str) else self.choices or []


class Limits(Settings):
    train: int | None = Field(default=None, ge=1, description="most training examples to use")
    validation: int | None = Field(default=None, ge=1, description="most validation examples to use")
    test: int | None = Field(default=None, ge=1, description="most test examples to use")


class PoolSettings(Settings):
    data: str = Field(description="catalogue name, file, folder or hub name of the public texts")
    columns: Columns = Columns()
    limit: int | None = Field(default=None, ge=1, description="most items, drawn by random_seed; null = all")
    prompt: str | None = Field(
        default=None,
        description="prompt of the pool's own class names, with {label}; of a decoder's pool {text} and behind it "
        "{label}, which is then an answer. Proxies are then trained on the pool's own labels or answers; null: they "
        "are trained to keep the seed's answers (distillation)",
    )


DataSource = str | dict[Literal["train", "validation", "test"], str]


class OwnerPrivacy(Settings):
    overlap_similarity: float = Field(
        default=0.95, gt=0, le=1, description="cosine from which a pool record counts as a near copy of a private one"
    )


class OwnerSettings(Settings):
    """One owner as a simulation recipe or a coordinator's recipe sees it."""

    data: DataSource | None = Field(
        default=None, description="catalogue name, file, folder, hub name, or one of these for each split"
    )
    columns: Columns = Columns()
    limits: Limits = Limits()
    prompt: str | None = Field(
        default=None,
        description="sentence around a class name, with {label}; of a decoder's owner the whole prompt, with {text} "
        "and at its end {label}, the answer. null = {label}, or {text} and in the next line Answer: {label}",
    )
    labels: list[Label] | None = Field(
        default=None, min_length=2, description="class names; null = read from the training data (simulation)"
    )
    publish_labels: bool = Field(default=True, description="false = the class names stay out of the charter")
    privacy: OwnerPrivacy = OwnerPrivacy()


class OwnerRecipe(Settings):
    """An owner's own recipe: only its name, data, columns and privacy settings."""

    name: Name = Field(description="the owner's name in the charter")
    data: DataSource
    columns: Columns = Columns()
    limits: Limits = Limits()
    privacy: OwnerPrivacy = OwnerPrivacy()


class RelevanceSettings(Settings):
    folds: int = Field(
        default=5, ge=2, description="cross-fitting folds: no item is scored by a classifier that saw it"
    )
    regularisation: float = Field(default=1.0, gt=0, description="inverse strength C of the L2 penalty")
    negatives_per_example: float = Field(default=4.0, gt=0, description="random pool items for each private example")


class SelectionSettings(Settings):
    method: Literal["dpp", "k-dpp", "facility-location", "k-centre", "similarity", "random"] = Field(
        default="dpp",
        description="dpp = relevant and diverse; k-dpp = a sample of the same process; facility-location = every "
        "relevant item has a similar pick; k-centre = none is far from all picks; similarity = the most relevant; "
        "random = neither",
    )
    size: int = Field(default=500, ge=2, description="m: number of proxies an owner selects")
    ridge: float = Field(default=1e-3, ge=0, description="λ of the kernel diag(g)(FFᵀ + λI)diag(g)")
    shards: int = Field(
        default=1,
        ge=1,
        description="parts of the pool that are selected from separately, then merged (method dpp); the number "
        "changes the result a little, so all owners use the same",
    )
    relevance: RelevanceSettings = RelevanceSettings()

    @model_validator(mode="after")
    def _only_the_dpp_is_merged(self) -> "SelectionSettings":
        if self.shards > 1 and self.method != "dpp":
            raise ValueError(f"shards: {self.shards} is for method dpp; method {self.method} knows one shard only")
        return self


DEFAULT_STEPS = 100


class TrainingSettings(Settings):
    parameters: Literal["full", "lora"] = Field(
        default="full",
        description="full FFN matrices, or LoRA factors beside them; the unified model then keeps the seed's FFNs once "
        "and the factors of each owner",
    )
    rank: int = Field(default=16, ge=1, description="LoRA rank")
    lora_alpha: float = Field(default=32.0, gt=0, description="LoRA update is scaled by lora_alpha / rank")
    alignment: Literal["both", "private", "proxy"] = Field(default="both", description="what an expert is trained on")
    labels: Literal["union", "own"] = Field(default="union", description="class names that compete in the private loss")
    steps: int | None = Field(
        default=None,
        ge=1,
        description=f"training steps, the same for every owner, {DEFAULT_STEPS} where epochs is not set either: the "
        "weights then tell only weakly how many private examples there were, by their share of the batches",
    )
    epochs: int | None = Field(
        default=None,
        ge=1,
        description="instead of steps: passes over private examples and proxies; the weights then tell roughly how "
        "many private examples there were, and the ledger says so",
    )
    batch_size: int = Field(default=32, ge=1, description="texts in a step")
    learning_rate: float = Field(default=1e-4, gt=0, description="of AdamW, after the warm-up")
    warmup_steps: int = Field(default=10, ge=0, description="steps over which the learning rate rises from 0")
    schedule: Literal["linear", "constant"] = Field(default="linear", description="linear = falls to 0 at the end")
    weight_decay: float = Field(default=0.01, ge=0, description="of AdamW")
    logit_scale: float = Field(default=20.0, gt=0, description="logits = logit_scale · cosine")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="mixed precision of the training steps"
    )

    @model_validator(mode="before")
    @classmethod
    def _steps_by_default(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("steps") is None and given.get("epochs") is None:
            return {**given, "steps": DEFAULT_STEPS}
        return given

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> "TrainingSettings":
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"steps: {self.steps} and epochs: {self.epochs} exclude each other; set one to null")
        return self


class JointTuningSettings(Settings):
    keep: Literal["if-better", "always", "never"] = Field(
        default="if-better", description="if-better = kept only where it raises the accuracy on held-out proxies"
    )
    parameters: Literal["router", "router-and-experts"] = Field(
        default="router-and-experts", description="what is tuned; λ too with router.learn_context_weight"
    )
    epochs: int = Field(default=1, ge=1, description="passes over the union of the proxies")
    batch_size: int = Field(default=32, ge=1, description="texts in a step")
    learning_rate: float = Field(default=2e-5, gt=0, description="of AdamW, falling to 0")
    routing_loss_weight: float = Field(default=1.0, ge=0, description="owner-supervised, on detached router inputs")
    balance_loss_weight: float = Field(default=0.0, ge=0, description="weight of the Switch load-balancing loss")


Baseline = Literal["searched-soup", "task-arithmetic", "btm", "btm-posterior", "btm-top", "fedavg", "btx", "pooled"]


class EvaluationSettings(Settings):
    split: Literal["test", "validation"] = Field(default="test", description="make choices on validation, report test")
    batch_size: int = Field(default=64, ge=1, description="texts in a batch")
    baselines: list[Baseline] = Field(
        default=[],
        description="more methods on the same experts: searched-soup and task-arithmetic = averages whose weights are "
        "chosen on proxies; btm = the experts' answers mixed, uniformly, by the domain's posterior, or by its two "
        "largest; fedavg = one model averaged in rounds; btx and pooled = trained on all private data, as references "
        "that are not private",
    )


class PrivacySettings(Settings):
    delta: float = Field(default=1e-5, gt=0, lt=1, description="the charter's public δ")


class Agreement(Settings):
    """What every participant must agree on: the settings part of the charter."""

    task: Task = Field(
        default="label-matching",
        description="label-matching = the class whose prompted name is closest to the text's embedding wins; "
        "label-head = a row for each class, trained by the label's owner and part of the contribution (pictures); "
        "causal-choice = of a decoder, the answer with the highest likelihood wins; causal-text = language modelling",
    )
    max_length: int | None = Field(default=None, ge=8, description="tokens kept of a text; null = the seed model's own")
    selection: SelectionSettings = SelectionSettings()
    training: TrainingSettings = TrainingSettings()
    router: RouterSettings = RouterSettings()
    joint_tuning: JointTuningSettings = JointTuningSettings()
    privacy: PrivacySettings = PrivacySettings()
    output_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="dtype of the unified model; its router stays float32"
    )
    random_seed: int = Field(default=0, ge=0, description="splits, samples, training order; same seed, same hashes")

    @model_validator(mode="before")
    @classmethod
    def _causal_context_by_default(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("task") not in CAUSAL:
            return given
        router = given.get("router") or {}
        known = isinstance(router, dict) and ("context" in router or router.get("preset", "default") != "default")
        return given if known or not isinstance(router, dict) else {**given, "router": {**router, "context": "causal"}}


class Recipe(Agreement):
    """A simulation recipe (owners with data) or a coordinator's recipe (owners with labels only)."""

    project: Name = "collegium"
    seed_model: str = Field(description="catalogue name, folder, or hub name")
    pool: PoolSettings
    owners: dict[Name, OwnerSettings] = Field(min_length=1)
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _prompts_fit_the_task(self) -> "Recipe":
        for where, prompt in [
            ("pool.prompt", self.pool.prompt),
            *((f"owners.{name}.prompt", owner.prompt) for name, owner in self.owners.items()),
        ]:
            if prompt is not None:
                check_prompt(where, prompt, self.task)
        return self

    @model_validator(mode="after")
    def _choices_fit_the_task(self) -> "Recipe":
        sources = {"pool": self.pool, **{f"owners.{name}": owner for name, owner in self.owners.items()}}
        for where, source in sources.items():
            if source.columns.choices is not None and self.task not in CAUSAL:
                raise ValueError(f"{where}.columns.choices is for task: causal-choice, not {self.task}")
        for name, owner in self.owners.items():
            if owner.columns.choices is not None and owner.labels is not None:
                raise ValueError(f"owners.{name}: labels and columns.choices exclude each other; leave one out")
        return self

    @model_validator(mode="after")
    def _baselines_answer_with_classes(self) -> "Recipe":
        if self.evaluation.baselines and self.task == "causal-text":
            raise ValueError("evaluation.baselines are measured by their answers, which task: causal-text has not")
        return self

    def prompt_of(self, owner: str) -> str:
        return self.owners[owner].prompt or DEFAULT_PROMPTS[self.task]

    @property
    def agreement(self) -> Agreement:
        return Agreement(**{name: getattr(self, name) for name in Agreement.model_fields})


def check_prompt(where: str, prompt: str, task: Task) -> None:
    """Refuse a prompt without the fields of its task, or with others.

    Raises:
        ValueError: naming `where` it stands.
    """
    if task == "causal-text" and where != "pool.prompt":
        raise ValueError(f"{where}: a text is learnt as it is with task: causal-text; leave the prompt out")
    rest = prompt.replace("{label}", "", 1)
    if "{label}" not in prompt:
        raise ValueError(f"{where} must contain {{label}}, got {prompt!r}")
    if task in CAUSAL:
        if "{text}" not in rest or not prompt.endswith("{label}"):
            raise ValueError(
                f"{where} must contain {{text}} and end with {{label}}, the answer; got {prompt!r}, expected something "
                f"like {DEFAULT_PROMPTS['causal-choice']!r}"
            )
        rest = rest.replace("{text}", "", 1)
    if "{" in rest or "}" in rest:
        allowed = "{text} and {label}" if task in CAUSAL else "{label}"
        raise ValueError(f"{where} may hold no braces but {allowed}, each once; got {prompt!r}")
