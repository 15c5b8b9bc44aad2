"""A plug-in of pytest, for tests that are run again: files in another order, and the tests of each."""

from __future__ import annotations

import os
import random

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def pytest_collection_modifyitems(items: list[Any]) -> None:
    rng = random.Random(os.environ["GAGAR_SHUFFLE"])
    files: dict[str, list[Any]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    order = rng.sample(list(files), len(files))
    items[:] = [item for name in order for item in rng.sample(files[name], len(files[name]))]
