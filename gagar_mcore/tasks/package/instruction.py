"""What a user would report of a bug: written by rule from the tests that fail, not from the place of the bug."""

import ast
import textwrap
from collections.abc import Mapping
from pathlib import Path

MOST_LINES = 40
MESSAGE_LINES = 12

_TEXT = """\
{package} {version}: {title}

The following does not hold:

```python
{code}
```

It ends with

```
{message}
```

{others}Find the cause in the package and mend it. The tests that stand in {tests}/ pass today and must go on passing.
"""


def write_instruction(package: str, version: str, suite: Path, tests: str, messages: Mapping[str, str]) -> str:
    """messages: of each failing test, by its id in `suite`. The one with the shortest code stands for all."""
    shown = {name: code for name in sorted(messages) if (code := _code(suite, name)) is not None}
    name = min(
        shown, key=lambda name: (len(shown[name].splitlines()) > MOST_LINES, len(shown[name]), name), default=min(messages)
    )
    code = "\n".join((shown.get(name) or f"# {name}").splitlines()[:MOST_LINES])
    others = {1: "", 2: "One more test fails with it. "}.get(len(messages), f"{len(messages) - 1} more tests fail with it. ")
    return _TEXT.format(
        package=package,
        version=version,
        title=_title(name),
        code=code,
        message=_ending(messages[name]),
        others=others,
        tests=tests,
    )


def _title(name: str) -> str:
    function = name.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ").strip()
    return f"{function or 'a test'} fails"


def _code(suite: Path, name: str) -> str | None:
    """The text of the test function, decorators left out."""
    file, *parts = name.split("::")
    try:
        text = (suite / file).read_text(encoding="utf-8")
        body: list[ast.stmt] = ast.parse(text).body
    except (OSError, SyntaxError, ValueError):
        return None
    node: ast.stmt | None = None
    for part in parts:
        node = next((n for n in body if getattr(n, "name", None) == part.partition("[")[0]), None)
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        body = node.body
    segment = node and ast.get_source_segment(text, node, padded=True)
    case = f"  # {parts[-1]}" if parts and "[" in parts[-1] else ""
    return textwrap.dedent(segment) + case if segment else None


def _ending(message: str) -> str:
    """The lines by which pytest marks an error, or else the last ones."""
    lines = message.strip().splitlines()
    marked = [line[1:].strip() or "" for line in lines if line.startswith("E ")]
    return "\n".join((marked or lines)[:MESSAGE_LINES]) or "an error without a message"
