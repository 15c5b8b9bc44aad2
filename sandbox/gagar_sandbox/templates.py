"""The templates of one pool: those in use, and some that were."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from gagar_sandbox.bwrap import command
from gagar_sandbox.host import Host
from gagar_sandbox.template import Template
from gagar_sandbox.types import SandboxLost, SandboxSpec

IDLE = 4


@dataclass(slots=True)
class _Entry:
    opening: asyncio.Task[Template]
    users: int = 0

    def failed(self) -> bool:
        """It could not be opened, or has died since."""
        return self.opening.done() and (self.opening.exception() is not None or self.opening.result().ended)


class Templates:
    """A template stays while a sandbox of it lives, and then among the last few that were used."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._retired: list[_Entry] = []

    async def take(self, spec: SandboxSpec, image: Path | None) -> tuple[Template, Hashable]:
        """A template of these files, and the key to give it back by. Raises Refused, SandboxLost, OSError."""
        key = _key(spec, image)
        entry = self._entries.get(key)
        if entry is not None and entry.failed():
            self._retired.append(self._entries.pop(key))
            entry = None
        if entry is None:
            opening = asyncio.create_task(Template.open(command(self._host, spec, image)))
            entry = self._entries[key] = _Entry(opening)
        entry.users += 1
        self._entries.move_to_end(key)
        try:
            return await asyncio.shield(entry.opening), key
        except BaseException:
            self.give_back(key)
            raise

    def give_back(self, key: Hashable) -> None:
        if key in self._entries:
            self._entries[key].users -= 1

    async def trim(self) -> None:
        """Close those that have been idle longest, beyond a few."""
        idle = [key for key, entry in self._entries.items() if entry.users <= 0 and entry.opening.done()]
        surplus = [self._entries.pop(key) for key in idle[: max(0, len(idle) - IDLE)]]
        for entry in surplus:
            await _close(entry)

    async def close(self) -> None:
        for entry in (*self._entries.values(), *self._retired):
            await _close(entry)
        self._entries.clear()
        self._retired.clear()


async def _close(entry: _Entry) -> None:
    with contextlib.suppress(SandboxLost, OSError):  # it never opened, and who waited for it has heard
        template = await entry.opening
        await template.close()


def _key(spec: SandboxSpec, image: Path | None) -> Hashable:
    """Equal for the same files: a folder that was replaced by another of its name is another."""
    folders = {"": spec.base, **spec.read_only}
    seen = tuple((at, path, _identity(path)) for at, path in sorted(folders.items()) if path)
    return (spec.workdir, image, seen)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
