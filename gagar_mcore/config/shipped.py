"""Recipes and checkpoints that ship with the package."""

from pathlib import Path


def launch_directory() -> Path:
    """`launch/` as package data of an installed distribution, or of the checkout this package runs from."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "launch"
    return installed if installed.is_dir() else package.parent / "launch"


def shipped_recipe_names() -> list[str]:
    return sorted(p.stem for p in (launch_directory() / "recipes").glob("*.yaml"))


def shipped_recipe(name: str) -> Path | None:
    return launch_directory() / "recipes" / f"{name}.yaml" if name in shipped_recipe_names() else None


def shipped_checkpoint(name: str) -> Path | None:
    """A checkpoint directory below `launch/assets`, None where there is none of that name."""
    path = launch_directory() / "assets" / name
    return path if (path / "config.json").is_file() else None
