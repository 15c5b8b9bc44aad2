"""pytest on a suite, each outcome told through a descriptor; started by `run_pytest.py`, which see.

Modules of the standard library and of the environment come before those of the repository, so that none of these takes the
place of one of those."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

HERE = os.path.dirname(os.path.abspath(__file__))
SITE = "/opt/site-packages"
SETTINGS = ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def main() -> NoReturn:
    channel, seed, source, suite, *ours = sys.argv[1:]
    key = os.read(0, 32)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(int(channel), False)
    sys.argv[:] = ["pytest"]
    sys.path[:] = [*(path for path in sys.path if "site-packages" not in path), SITE]
    plugins = list(environment_plugins())
    own = [f"_pytest.{name}" for name in importlib.import_module("_pytest.config").default_plugins]
    for name in ("unittest.mock", "unittest.async_case", *own):
        importlib.import_module(name)
    pytest = importlib.import_module("pytest")
    sys.path.insert(0, HERE)
    outcomes = importlib.import_module("outcomes")
    sys.path.remove(HERE)
    tell = teller(int(channel), key)
    watch = outcomes.Watch(tell, seed, (HERE, SITE), suite, ours)
    sys.path.append(source)
    code = int(pytest.main([*options(suite), *plugins, suite, *ours], plugins=[watch]))
    tell({"end": code})
    sys.stdout.flush()
    os._exit(code)


def options(suite: str) -> list[str]:
    found = [name for name in SETTINGS if os.path.isfile(f"{suite}/{name}")]
    settings = f"{suite}/{found[0]}" if found else os.devnull
    shown = ["-q", "--tb=short", "--no-summary", "--continue-on-collection-errors"]
    return [*shown, "--override-ini=addopts=", f"--rootdir={suite}", f"--config-file={settings}", "-pno:cacheprovider"]


def environment_plugins() -> Iterator[str]:
    """Of pytest, by the entry points of the environment alone, as words of its command line."""
    metadata = importlib.import_module("importlib.metadata")
    for distribution in metadata.distributions(path=[SITE]):
        for entry in distribution.entry_points:
            if entry.group == "pytest11":
                yield f"-p{entry.value.partition(':')[0]}"


def teller(channel: int, key: bytes) -> Callable[[dict[str, Any]], None]:
    """Writes one signed line. What it needs is bound here, before anything could replace it."""
    write, dumps, blake2b = os.write, json.dumps, hashlib.blake2b
    told = iter(range(1 << 62))

    def tell(what: dict[str, Any]) -> None:
        text = dumps(what).encode()
        line = blake2b(b"%d " % next(told) + text, key=key, digest_size=16).hexdigest().encode() + b" " + text + b"\n"
        while line:
            line = line[write(channel, line) :]

    return tell


if __name__ == "__main__":
    main()
