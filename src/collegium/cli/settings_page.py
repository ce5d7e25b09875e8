"""Writes docs/settings.md from the settings themselves: `python -m collegium.cli.settings_page > docs/settings.md`."""

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from collegium.benchmarks.suite import Suite
from collegium.core.recipe import OwnerRecipe, Recipe
from collegium.federated.deployed_recipe import DeployedRecipe
from collegium.federated.recipe import FederatedRecipe

INTRODUCTION = """# Settings

Every key of a recipe, with its default. `--set key=value` overrides any of them (`--set router.init=raw`). An unknown
key is an error. This page is made from the settings: `python -m collegium.cli.settings_page > docs/settings.md`.
"""
TITLES: dict[str, type[BaseModel]] = {
    "A simulation's or coordinator's recipe": Recipe,
    "An owner's own recipe": OwnerRecipe,
    "A federation's recipe, of `collegium federate`": FederatedRecipe,
    "A federation's recipe on real nodes": DeployedRecipe,
    "A suite": Suite,
}
CHOICE = "algorithm"  # a field that is one of several settings, by its name


def settings_page() -> str:
    """The page, in Markdown."""
    parts = [INTRODUCTION]
    for title, model in TITLES.items():
        parts += [f"## {title}\n", *_table(model), ""]
    return "\n".join([*parts, "## Algorithms of federations\n", *_algorithms(), ""])


def _table(model: type[BaseModel]) -> list[str]:
    lines = [f"| `{key}` | {kind} | {default} | {meaning} |" for key, kind, default, meaning in _rows(model, "")]
    return ["| key | value | default | meaning |\n| --- | --- | --- | --- |", *lines]


def _algorithms() -> list[str]:
    """The keys of all algorithms; one that several have in the same way stands there once."""
    having: dict[tuple[str, str, str, str], list[str]] = {}
    algorithms = _choices(FederatedRecipe.model_fields[CHOICE])
    for one in algorithms:
        for row in _rows(one, f"{CHOICE}."):
            having.setdefault(row, []).append(f"`{one.model_fields['name'].default}`")
    lines = ["| key | of | value | default | meaning |\n| --- | --- | --- | --- | --- |"]
    for (key, kind, default, meaning), names in having.items():
        of = "all" if len(names) == len(algorithms) else ", ".join(names)
        if key != f"{CHOICE}.name":
            lines.append(f"| `{key}` | {of} | {kind} | {default} | {meaning} |")
    return lines


def _choices(field: FieldInfo) -> list[type[BaseModel]]:
    """The settings that a field is one of."""
    return [one for one in get_args(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel)]


def _rows(model: type[BaseModel], prefix: str) -> list[tuple[str, str, str, str]]:
    rows = []
    for name, field in model.model_fields.items():
        nested = _nested(field.annotation)
        key = f"{prefix}{field.alias or name}"
        if field.discriminator is not None:
            names = [f"`{one.model_fields['name'].default}`" for one in _choices(field)]
            rows.append((f"{key}.name", ", ".join(names), "required", "the last table has the keys of each"))
            continue
        if nested is not None:
            inner, is_mapping = nested
            rows += _rows(inner, f"{key}.{'NAME.' if is_mapping else ''}")
            continue
        default = "required" if field.is_required() else f"`{_yaml(field.default)}`"
        rows.append((key, _kind(field.annotation), default, (field.description or "").replace("|", "\\|")))
    return rows


def _nested(annotation: Any) -> tuple[type[BaseModel], bool] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not NoneType]
        return _nested(parts[0]) if len(parts) == 1 else None
    if get_origin(annotation) is Annotated:
        return _nested(get_args(annotation)[0])
    if get_origin(annotation) is dict:
        value = get_args(annotation)[1]
        if isinstance(value, type) and issubclass(value, BaseModel):
            return value, True
    return None


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return " or ".join(_kind(part) for part in get_args(annotation))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if origin is list:
        return f"list of {_kind(get_args(annotation)[0])}"
    if origin is dict:
        return "mapping"
    names = {
        str: "text",
        int: "integer",
        float: "number",
        bool: "true or false",
        NoneType: "null",
        Path: "path",
        Any: "any",
    }
    return names[annotation]


def _yaml(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


if __name__ == "__main__":
    print(settings_page(), end="")
