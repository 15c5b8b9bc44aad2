"""A model's architecture in a checkpoint directory of Hugging Face format."""

import json
from pathlib import Path
from typing import Any

from gagar_mcore.models import mimo_v2, qwen3_moe
from gagar_mcore.models.config import ModelConfig

FAMILIES = {"mimo_v2": mimo_v2, "qwen3_moe": qwen3_moe}


def read_config(directory: Path) -> ModelConfig:
    """The architecture of a checkpoint directory. Raises ValueError, with the file, where `config.json` cannot be read, where a
    field is missing, of a wrong type or at odds with another, and for another model."""
    path = directory / "config.json"
    try:
        return from_hf(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: {str(error.strerror).lower()}; name a directory in Hugging Face format") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


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


def to_hf(config: ModelConfig, published: bool = False) -> dict[str, Any]:
    """The contents of `config.json`: as transformers spells it where it can express the model, or as the checkpoints do that
    were published."""
    return FAMILIES[config.family].write(config, published)
