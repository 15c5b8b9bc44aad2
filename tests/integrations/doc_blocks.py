"""The examples of docs/integrations.md, as code."""

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"


def block(name):
    """The Python block below `<!-- run: NAME -->`."""
    _, found, rest = PAGE.read_text().partition(f"<!-- run: {name} -->\n```python\n")
    assert found, f"{PAGE.name} has no example {name!r}"
    return compile(rest.partition("```")[0], f"{PAGE.name}: {name}", "exec")
