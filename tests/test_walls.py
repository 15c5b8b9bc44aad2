"""The walls between the rooms, read off the import statements."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*(ROOT / "gagar_mcore").rglob("*.py"), *(ROOT / "sandbox" / "gagar_sandbox").rglob("*.py")])
CONTROLLER_SIDE = (
    "agent",
    "config",
    "controller",
    "engine",
    "evals",
    "grading",
    "plan",
    "records",
    "rollout",
    "tasks",
    "verify",
    "viewer",
)


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path) -> str:
    return path.relative_to(ROOT / "gagar_mcore").parts[0] if path.is_relative_to(ROOT / "gagar_mcore") else "sandbox"


def offenders(rooms: tuple[str, ...], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        if room(path) in rooms
        for name in imports(path)
        if any(name == f or name.startswith(f"{f}.") for f in forbidden)
    ]


@pytest.mark.parametrize(
    ("rooms", "forbidden"),
    [
        (("sandbox",), ("gagar_mcore",)),
        (
            ("trainer", "models", "ops"),
            ("gagar_mcore.agent", "gagar_mcore.grading", "gagar_mcore.engine", "gagar_mcore.controller"),
        ),
        (CONTROLLER_SIDE, ("megatron",)),
        (("records",), ("torch", "wandb")),
        (tuple({room(p) for p in FILES} - {"cli.py"}), ("gagar_mcore.cli",)),
        (("grading",), ("gagar_mcore.evals",)),
    ],
    ids=["sandbox stands alone", "trainer", "controller side", "records", "nobody imports cli", "graders see no reference"],
)
def test_a_wall_stands(rooms: tuple[str, ...], forbidden: tuple[str, ...]) -> None:
    assert offenders(rooms, forbidden) == []


def test_only_trainer_and_models_touch_megatron() -> None:
    rooms = {room(path) for path in FILES for name in imports(path) if name.split(".")[0] == "megatron"}
    assert rooms <= {"trainer", "models", "sft"}


def test_importing_the_package_and_its_commands_loads_no_torch() -> None:
    code = "import sys, gagar_mcore, gagar_mcore.cli; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'wandb')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
