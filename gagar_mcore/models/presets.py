"""Named architectures."""

from gagar_mcore.models.mimo_v2 import MimoV2Config, tiny

PRESETS = {"tiny": tiny}


def preset(name: str) -> MimoV2Config:
    """Raises ValueError for a name that is not in `PRESETS`."""
    if name not in PRESETS:
        raise ValueError(f"model.preset: no preset {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()
