"""The examples of the documentation, as code."""

import os
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "integrations.md"


def block(name, page=PAGE):
    """The Python block below `<!-- run: NAME -->`."""
    return compile(text(name, "python", page), f"{page.name}: {name}", "exec")


def text(name, language, page=PAGE):
    """The text of the block below `<!-- run: NAME -->`."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"<!-- run: {name} -->\n```{language}\n")
    assert found, f"{page.name} has no example {name!r}"
    return rest.partition("```")[0]


def run(commands, folder):
    """What the shell `commands`, none of which may fail, print in `folder`; `gagar` is the one of this environment."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-euc", commands], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
