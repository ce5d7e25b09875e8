"""A suite, as data: one recipe, variants of it, random seeds, and the row that the others are compared with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import Field, model_validator

from collegium.core.errors import InputError, RecipeError
from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import Name, Recipe
from collegium.core.settings import Settings

PLACE = Path("recipes") / "suites"


class Variant(Settings):
    """A recipe with some keys changed; its unified model is a row of the table."""

    settings: dict[str, Any] = Field(default={}, alias="set", description="dotted keys of the recipe, and their values")
    recipe: Path | None = Field(default=None, description="another recipe, beside the suite; null = the suite's")
    owners: Annotated[list[Name], Field(min_length=1)] | None = Field(
        default=None, description="these owners of the recipe alone; null = all"
    )
    seeds: Annotated[list[int], Field(min_length=1)] | None = Field(
        default=None, description="fewer seeds than the suite's; null = all"
    )
    others: bool = Field(
        default=False, description="show seed, experts, soup, oracle and baselines of this variant as rows too"
    )
    note: str = Field(default="", description="what it is, in the table's legend")


class Suite(Settings):
    """Content of a suite file."""

    page: ClassVar[str] = "docs/suites.md"
    name: Name
    recipe: Path = Field(description="recipe of all variants, beside the suite")
    seeds: list[int] = Field(min_length=1, description="random seeds")
    reference: str = Field(description="variant, or variant/method, that every row is compared with")
    settings: dict[str, Any] = Field(default={}, alias="set", description="dotted keys for all variants")
    variants: dict[Name, Variant] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "Suite":
        variant, _, method = self.reference.partition("/")
        if variant not in self.variants:
            raise ValueError(f"reference: {self.reference} is no variant of the suite")
        if method == "unified":
            raise ValueError(f"reference: the unified model's row is called {variant}")
        for where, changes in {"set": self.settings, **{n: one.settings for n, one in self.variants.items()}}.items():
            if "random_seed" in changes:
                raise ValueError(f"{where}: random_seed is the seed of the cell; list it in seeds")
        if method and not self.variants[variant].others:
            raise ValueError(f"reference: {self.reference} is no row; set others: true for the variant {variant}")
        for name, one in self.variants.items():
            strange = sorted(set(one.seeds or []) - set(self.seeds))
            if strange:
                raise ValueError(f"variants.{name}.seeds: {strange} are not among the suite's seeds")
        return self

    def seeds_of(self, variant: str) -> list[int]:
        return [seed for seed in self.seeds if seed in (self.variants[variant].seeds or self.seeds)]

    def part(self, seeds: Sequence[int] | None, variants: Sequence[str] | None) -> "Suite":
        """The same suite with some of its seeds and variants; the reference may be none of them.

        Raises:
            InputError: one that it does not have.
        """
        for what, wanted, known in (("seed", seeds, self.seeds), ("variant", variants, [*self.variants])):
            strange = [one for one in wanted or [] if one not in known]
            if strange:
                raise InputError(
                    f"The suite {self.name} has no such {what}.", got=strange[0], expected=", ".join(map(str, known))
                )
        kept = {name: one for name, one in self.variants.items() if name in (variants or self.variants)}
        return self.model_copy(update={"seeds": list(seeds or self.seeds), "variants": kept})


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


def cell_recipe(suite: Suite, path: Path, variant: str, seed: int, overrides: list[str] | None = None) -> Recipe:
    """The recipe of one cell.

    Args:
        path: of the suite, beside which its recipes lie.
        overrides: `key=value` for all cells.

    Raises:
        RecipeError: faults, as `load_recipe` names them.
    """
    if any(override.startswith("random_seed=") for override in overrides or []):
        raise RecipeError("random_seed is the seed of the cell.", do="choose seeds with --seed")
    one = suite.variants[variant]
    changes = {**suite.settings, **one.settings, "random_seed": seed}
    given = [f"{key}={_yaml(value)}" for key, value in changes.items()]
    recipe = load_recipe(path.parent / (one.recipe or suite.recipe), Recipe, [*given, *(overrides or [])])
    if recipe.task == "causal-text":
        raise RecipeError(
            "Methods of a suite are compared by their answers, which task: causal-text has not.",
            got=f"variant {variant}",
            expected="a task with classes or choices",
        )
    return recipe if one.owners is None else _among(recipe, one.owners, variant)


def _among(recipe: Recipe, owners: Sequence[str], variant: str) -> Recipe:
    strange = [name for name in owners if name not in recipe.owners]
    if strange:
        raise RecipeError(
            f"variants.{variant}.owners: the recipe has no owner {strange[0]}.", expected=", ".join(recipe.owners)
        )
    return recipe.model_copy(update={"owners": {name: recipe.owners[name] for name in owners}})


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**9).removesuffix("\n").removesuffix("\n...")
