"""A model's architecture in a checkpoint directory of Hugging Face format."""

import json
from pathlib import Path
from typing import Any

from gagar_mcore.models import mimo_v2, qwen3_moe
from gagar_mcore.models.config import Family, ModelConfig

FAMILIES: dict[Family, Any] = {"mimo_v2": mimo_v2, "qwen3_moe": qwen3_moe}


def read_config(directory: Path) -> ModelConfig:
    """The architecture of a checkpoint directory. Raises ValueError, with the file, where `config.json` cannot be read, where a
    field is missing, of a wrong type or at odds with another, and for another model."""
    path = directory / "config.json"
    data = _read(path)
    try:
        return from_hf(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_family(directory: Path) -> Family | None:
    """The family of a checkpoint directory, None for a model that is not of this package. Raises ValueError as `read_config` does
    for a file that cannot be read."""
    data = _read(directory / "config.json")
    model_type = data.get("model_type") if isinstance(data, dict) else None
    return next((name for name, module in FAMILIES.items() if model_type in module.MODEL_TYPES), None)


def from_hf(data: Any) -> ModelConfig:
    """Raises ValueError, see `read_config`, without the file."""
    if not isinstance(data, dict):
        raise ValueError("holds no JSON object, which the configuration of a model is")
    if "model_type" not in data:
        raise ValueError("field 'model_type' is missing")
    family = next((module for module in FAMILIES.values() if data["model_type"] in module.MODEL_TYPES), None)
    if family is None:
        known = ", ".join(repr(name) for module in FAMILIES.values() for name in module.MODEL_TYPES)
        raise ValueError(f"model_type {data['model_type']!r} is none of {known}")
    for key, value in family.FIXED.items():
        if data.get(key, value) != value:
            raise ValueError(f"{key} is {data[key]!r}, only {value!r} is supported")
    return family.read(data)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {str(error.strerror).lower()}; name a directory in Hugging Face format") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error


def to_hf(config: ModelConfig, published: bool = False) -> dict[str, Any]:
    """The contents of `config.json`: as transformers spells it where it can express the model, or as the checkpoints do that
    were published."""
    return FAMILIES[config.family].write(config, published)
