"""Writes docs/settings.md from the settings themselves: `python -m collegium.core.settings_page > docs/settings.md`."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from collegium.core.recipe import OwnerRecipe, Recipe

INTRODUCTION = """# Settings

Every key of a recipe, with its default. `--set key=value` overrides any of them (`--set router.init=raw`). An unknown
key is an error. This page is made from the settings: `python -m collegium.core.settings_page > docs/settings.md`.
"""


def settings_page() -> str:
    """The page, in Markdown."""
    parts = [INTRODUCTION]
    for title, model in (
        ("A simulation's or coordinator's recipe", Recipe),
        ("An owner's own recipe", OwnerRecipe),
    ):
        parts.append(f"## {title}\n\n| key | value | default | meaning |\n| --- | --- | --- | --- |")
        parts += [f"| `{key}` | {kind} | {default} | {meaning} |" for key, kind, default, meaning in _rows(model, "")]
        parts.append("")
    return "\n".join(parts)


def _rows(model: type[BaseModel], prefix: str) -> list[tuple[str, str, str, str]]:
    rows = []
    for name, field in model.model_fields.items():
        nested = _nested(field.annotation)
        key = f"{prefix}{name}"
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
        return "mapping by split"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}
    return names[annotation]


def _yaml(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


if __name__ == "__main__":
    print(settings_page(), end="")
