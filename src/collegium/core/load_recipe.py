"""Reads a YAML recipe into settings, with `--set key=value` overrides; reports all faults together."""

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from collegium.core.errors import RecipeError
from collegium.core.settings import Settings

Model = TypeVar("Model", bound=Settings)


def load_recipe(path: str | Path, model: type[Model], overrides: list[str] | None = None) -> Model:
    """Read `path` as `model` (`Recipe` or `OwnerRecipe`).

    Args:
        overrides: `key=value` pairs; keys are dotted paths, values are YAML (`router.init=lda`).

    Raises:
        RecipeError: the file cannot be read, is no mapping, or holds faults; every fault with its key's path.
    """
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"The recipe cannot be read: {path}", got=error.strerror, do="check the path") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is no valid YAML.", got=str(error), do="correct the file") from None
    return parse_settings(values, model, overrides, source=str(path))


def parse_settings(
    values: Any, model: type[Model], overrides: list[str] | None = None, source: str = "recipe"
) -> Model:
    """Validate a mapping as `model`, see `load_recipe`."""
    if not isinstance(values, dict):
        raise RecipeError(f"{source} holds no settings.", got=type(values).__name__, expected="a mapping of keys")
    for override in overrides or []:
        _apply(values, override)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = [_describe(fault, model) for fault in error.errors()]
        raise RecipeError(
            f"{source} has {len(faults)} fault{'s' if len(faults) > 1 else ''}:\n    " + "\n    ".join(faults),
            do=f"correct the keys above; {model.page} says what there is",
        ) from None


def _apply(values: dict, override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise RecipeError("An override is not of the form key=value.", got=override, expected="router.init=lda")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise RecipeError("The value of an override is no YAML.", got=override) from None
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise RecipeError(f"--set {override}: {parent} holds a value, not further keys.")
    values[last] = value


def _describe(fault: Any, model: type[BaseModel]) -> str:
    path, choice = _place(fault["loc"], model)
    kind, message = fault["type"], fault["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return f"{path}: {_unknown(str(fault['loc'][-1]), choice, _keys(model))}"
    if kind in ("missing", "union_tag_not_found"):
        return f"{path}{'' if kind == 'missing' else '.name'}: this key is required"
    if kind == "union_tag_invalid":
        return f"{path}.name: {fault['ctx']['tag']} is none of {fault['ctx']['expected_tags'].replace(chr(39), '')}"
    if isinstance(fault["input"], dict):  # a fault of several keys names them itself, and a whole recipe says nothing
        return f"{path}: {message}" if fault["loc"] else message
    return f"{path}: {message} (got {fault['input']!r})"


def _unknown(key: str, choice: str, known: set[str]) -> str:
    if choice and key in known:
        return f"{choice} has no such key"
    close = difflib.get_close_matches(key, known - {key}, n=1)
    return "unknown key" + (f"; did you mean {close[0]}?" if close else "")


def _place(loc: tuple[str | int, ...], model: type[BaseModel]) -> tuple[str, str]:
    """(dotted key, `name: x` of the one among several settings that it belongs to, or "")."""
    parts, choice = [str(part) for part in loc], ""
    field = model.model_fields.get(parts[0]) if parts else None
    if field is not None and field.discriminator is not None and len(parts) > 1:
        choice = f"{field.discriminator}: {parts.pop(1)}"
    return ".".join(parts) or "(recipe)", choice


def _keys(model: type[BaseModel]) -> set[str]:
    """Names of all keys of a model and of the models nested in it."""
    keys: set[str] = set()
    for name, field in model.model_fields.items():
        keys.add(name)
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for candidate in candidates:
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                keys |= _keys(candidate)
    return keys
