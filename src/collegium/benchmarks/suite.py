"""A suite, as data: a recipe, variants of it, cases, random seeds, and the row that the others are compared with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, model_validator

from collegium.core.errors import InputError, RecipeError
from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import Name, Recipe
from collegium.core.settings import Settings
from collegium.federated.recipe import FederatedRecipe

PLACE = Path("recipes") / "suites"


class Variant(Settings):
    """A recipe with some keys changed; what it finds is a row of the table."""

    settings: dict[str, Any] = Field(default={}, alias="set", description="dotted keys of the recipe, and their values")
    recipe: Path | None = Field(default=None, description="another recipe, beside the suite; null = the case's")
    owners: Annotated[list[Name], Field(min_length=1)] | None = Field(
        default=None, description="these owners of the recipe alone; null = all"
    )
    cases: Annotated[list[Name], Field(min_length=1)] | None = Field(
        default=None, description="fewer cases than the suite's; null = all"
    )
    seeds: Annotated[list[int], Field(min_length=1)] | None = Field(
        default=None, description="fewer seeds than the suite's; null = all"
    )
    others: bool = Field(
        default=False, description="show seed, experts, soup, oracle and baselines of this variant as rows too"
    )
    note: str = Field(default="", description="what it is, in the table's legend")


class Case(Settings):
    """What all variants are compared on, such as a data set and its partition; has a table of its own."""

    settings: dict[str, Any] = Field(default={}, alias="set", description="dotted keys of the recipe, and their values")
    recipe: Path | None = Field(default=None, description="another recipe, beside the suite; null = the suite's")
    note: str = Field(default="", description="what it is, above its table")


class Suite(Settings):
    """Content of a suite file."""

    name: Name
    recipe: Path = Field(description="recipe of all variants, beside the suite")
    seeds: list[int] = Field(min_length=1, description="random seeds")
    reference: str = Field(description="variant, or variant/method, that every row is compared with")
    settings: dict[str, Any] = Field(default={}, alias="set", description="dotted keys for all variants")
    cases: Annotated[dict[Name, Case], Field(min_length=1)] | None = Field(
        default=None, description="every variant on each of these; null = on the recipe alone"
    )
    tune: dict[str, Annotated[list[Any], Field(min_length=2)]] = Field(
        default={},
        description="dotted key and values to try, all combinations of several keys: in every case each variant takes "
        "those that are best on validation data, with the first seed; a variant that sets a key itself keeps it",
    )
    variants: dict[Name, Variant] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "Suite":
        variant, _, method = self.reference.partition("/")
        if variant not in self.variants:
            raise ValueError(f"reference: {self.reference} is no variant of the suite")
        if method == "unified":
            raise ValueError(f"reference: the unified model's row is called {variant}")
        cases = self.cases or {}
        settings = {name: one.settings for name, one in {**cases, **self.variants}.items()}
        for where, changes in {"set": self.settings, "tune": self.tune, **settings}.items():
            if "random_seed" in changes:
                raise ValueError(f"{where}: random_seed is the seed of the cell; list it in seeds")
        if method and not self.variants[variant].others:
            raise ValueError(f"reference: {self.reference} is no row; set others: true for the variant {variant}")
        for name, one in self.variants.items():
            for what, own, known in (("seeds", one.seeds, self.seeds), ("cases", one.cases, cases)):
                strange = sorted(set(own or []) - set(known))
                if strange:
                    raise ValueError(f"variants.{name}.{what}: {strange} are not among the suite's {what}")
        return self

    def case_names(self, variant: str) -> list[str]:
        """The cases of a variant; one that is called "" where the suite has none."""
        own = self.variants[variant].cases
        return [name for name in self.cases or [""] if own is None or name in own]

    def seeds_of(self, variant: str) -> list[int]:
        own = self.variants[variant].seeds
        return [seed for seed in self.seeds if own is None or seed in own]

    def compared_with(self, reference: str) -> "Suite":
        """The same suite, whose rows are compared with another method.

        Raises:
            InputError: a variant that it does not have, or whose other methods are no rows.
        """
        variant, _, method = reference.partition("/")
        known = [name for name, one in self.variants.items() if one.others or not method]
        if variant not in known:
            raise InputError(
                f"The suite {self.name} has no such method.",
                got=reference,
                expected=", ".join(f"{name}/METHOD" if method else name for name in known),
            )
        return self.model_copy(update={"reference": reference})

    def part(
        self, seeds: Sequence[int] | None, variants: Sequence[str] | None, cases: Sequence[str] | None = None
    ) -> "Suite":
        """The same suite with some of its seeds, variants and cases; the reference may be none of them.

        Raises:
            InputError: one that it does not have.
        """
        for what, wanted, known in (
            ("seed", seeds, self.seeds),
            ("variant", variants, [*self.variants]),
            ("case", cases, [*(self.cases or {})]),
        ):
            strange = [one for one in wanted or [] if one not in known]
            if strange:
                raise InputError(
                    f"The suite {self.name} has no such {what}.",
                    got=strange[0],
                    expected=", ".join(map(str, known)) or f"no {what}: the suite has none",
                )
        kept = {
            name: one.model_copy(
                update={  # the suite keeps its own: choices are made with its first seed
                    "seeds": [seed for seed in self.seeds_of(name) if seed in (seeds or self.seeds)],
                    "cases": [case for case in self.case_names(name) if case in (cases or self.cases or [""])],
                }
            )
            for name, one in self.variants.items()
            if name in (variants or self.variants)
        }
        return self.model_copy(update={"variants": kept})


def load_suite(name: str) -> tuple[Suite, Path]:
    """A suite and the file that it came from.

    Args:
        name: path of a YAML file, or its stem in `recipes/suites`.

    Raises:
        RecipeError: no such file, or faults in it.
    """
    path = Path(name)
    if not path.suffix and not path.exists():
        path = PLACE / f"{name}.yaml"
        if not path.is_file():
            known = sorted(file.stem for file in PLACE.glob("*.yaml"))
            raise RecipeError(
                "There is no such suite.",
                got=name,
                expected=", ".join(known) or f"a suite in {PLACE}, or a path",
                do="name a suite, or the path of its YAML file",
            )
    return load_recipe(path, Suite), path


def cell_recipe(
    suite: Suite,
    path: Path,
    variant: str,
    seed: int,
    overrides: Sequence[str] = (),
    case: str = "",
    chosen: Mapping[str, Any] | None = None,
) -> Recipe | FederatedRecipe:
    """The recipe of one cell; one that names an `algorithm` is of a federation.

    Args:
        path: of the suite, beside which its recipes lie.
        overrides: `key=value` for all cells.
        case: "" where the suite has none.
        chosen: keys that were tuned, and their values.

    Raises:
        RecipeError: faults, as `load_recipe` names them.
    """
    if any(override.startswith("random_seed=") for override in overrides):
        raise RecipeError("random_seed is the seed of the cell.", do="choose seeds with --seed")
    one, of_case = suite.variants[variant], (suite.cases or {}).get(case, Case())
    changes = [suite.settings, of_case.settings, one.settings, chosen or {}, {"random_seed": seed}]
    given = [f"{key}={_yaml(value)}" for part in changes for key, value in part.items()]
    file = path.parent / (one.recipe or of_case.recipe or suite.recipe)
    if _is_federated(file):
        if one.owners is not None or one.others:
            raise RecipeError(f"variants.{variant}: owners and others are not of federated recipes.", got=file)
        return load_recipe(file, FederatedRecipe, [*given, *overrides])
    recipe = load_recipe(file, Recipe, [*given, *overrides])
    if recipe.task == "causal-text":
        raise RecipeError(
            "Methods of a suite are compared by their answers, which task: causal-text has not.",
            got=f"variant {variant}",
            expected="a task with classes or choices",
        )
    return recipe if one.owners is None else _among(recipe, one.owners, variant)


def _is_federated(file: Path) -> bool:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return False  # whoever loads it says what is wrong
    return isinstance(values, dict) and "algorithm" in values


def _among(recipe: Recipe, owners: Sequence[str], variant: str) -> Recipe:
    strange = [name for name in owners if name not in recipe.owners]
    if strange:
        raise RecipeError(
            f"variants.{variant}.owners: the recipe has no owner {strange[0]}.", expected=", ".join(recipe.owners)
        )
    return recipe.model_copy(update={"owners": {name: recipe.owners[name] for name in owners}})


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**9).removesuffix("\n").removesuffix("\n...")
