"""Recipes from YAML: by path or shipped name, with dotted overrides, and one clear line for every mistake."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from gagar_mcore.config.base import Section
from gagar_mcore.config.learning import MethodSection
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.shipped import shipped_recipe, shipped_recipe_names
from gagar_mcore.config.yaml12 import parse_yaml

AnySection = TypeVar("AnySection", bound=Section)


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the file, the field and the mend."""


def find_recipe(name: str) -> Path:
    """A recipe's file: an existing path, or the name of a shipped one."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_recipe(name)
    if shipped is None:
        raise RecipeError(f"{name}: no such file and no shipped recipe; shipped are: {', '.join(shipped_recipe_names())}")
    return shipped


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read and validate a recipe. Each override is `section.field=value`, the value in YAML. Raises RecipeError."""
    path = find_recipe(name)
    data = _parse(_text(path), str(path))
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of sections")
    return build_recipe(data, overrides, str(path))


def build_recipe(data: dict[str, Any], overrides: Sequence[str], where: str) -> Recipe:
    """Validate the fields of a recipe that `where` gave, which changes `data`. Raises RecipeError."""
    for override in overrides:
        _apply(data, override)
    return validate(Recipe, data, where)


def load_method(settings: Sequence[str]) -> MethodSection:
    """The method section alone; each setting is `field=value`, the value in YAML. Raises RecipeError."""
    data: dict[str, Any] = {}
    for setting in settings:
        _apply(data, setting)
    return validate(MethodSection, data, "method")


def validate(kind: type[AnySection], data: dict[str, Any], where: str) -> AnySection:
    """The section that `data` tells. Raises RecipeError, a line for each mistake with its field and `where` it was made."""
    try:
        return kind.model_validate(_tuples(data))
    except ValidationError as error:
        lines = [f"{where}: {'.'.join(map(str, e['loc'])) or kind.__name__.lower()}: {_explain(e)}" for e in error.errors()]
        raise RecipeError("\n".join(lines)) from error


def dump_recipe(recipe: Recipe) -> str:
    """The complete recipe as YAML, defaults included."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, width=120)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text; a recipe is a YAML file") from error


def _parse(text: str, where: str) -> Any:
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {override!r}: write it as section.field=value")
    *sections, field = key.split(".")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise RecipeError(f"override {override!r}: {section} is a value, not a section")
    data[field] = _parse(value, f"override {override!r}")


def _tuples(value: Any) -> Any:
    """YAML knows lists only; strict models want tuples for fixed-length fields."""
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _explain(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown field; remove it or correct its name"
    if error["type"] == "missing":
        return "required and missing; add it"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "tuple_type":
        return f"must be a list, got {error['input']!r}"
    if error["type"] == "model_type":
        return f"must be a section with fields of its own, got {error['input']!r}"
    return f"{error['msg'].lower()}, got {error['input']!r}"
