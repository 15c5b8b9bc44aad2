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


@dataclass(slots=True, eq=False)
class Held:
    """A template, once it is opened, and how many hold it."""

    opening: asyncio.Task[Template]
    users: int = 0

    @property
    def template(self) -> Template:
        return self.opening.result()

    def failed(self) -> bool:
        """It could not be opened, or has died since."""
        return self.opening.done() and (self.opening.exception() is not None or self.template.ended)


class Templates:
    """A template stays while a sandbox of it lives, and then among the last few that were used."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._held: OrderedDict[Hashable, Held] = OrderedDict()
        self._retired: list[Held] = []

    async def take(self, spec: SandboxSpec, image: Path | None) -> Held:
        """A template of these files, to be given back. Raises Refused, SandboxLost, OSError."""
        key = _key(spec, image)
        held = self._held.get(key)
        if held is not None and held.failed():
            self._retired.append(self._held.pop(key))
            held = None
        if held is None:
            held = self._held[key] = Held(asyncio.create_task(Template.open(command(self._host, spec, image))))
        held.users += 1
        self._held.move_to_end(key)
        try:
            await asyncio.shield(held.opening)
        except BaseException:
            self.give_back(held)
            raise
        return held

    def give_back(self, held: Held) -> None:
        held.users -= 1

    async def trim(self) -> None:
        """Close those that have been idle longest, beyond a few. Cancelled, it goes on by itself."""
        idle = [key for key, held in self._held.items() if held.users == 0 and held.opening.done()]
        self._retired += [self._held.pop(key) for key in idle[: max(0, len(idle) - IDLE)]]
        if self._retired:
            await asyncio.shield(asyncio.create_task(self._bury()))

    async def close(self) -> None:
        self._retired += self._held.values()
        self._held.clear()
        await self._bury()

    async def _bury(self) -> None:
        for held in list(self._retired):
            await _close(held)
            if held in self._retired:  # another may have closed it too
                self._retired.remove(held)


async def _close(held: Held) -> None:
    with contextlib.suppress(SandboxLost, OSError):  # it never opened, and who waited for it has heard
        template = await held.opening
        await template.close()


def _key(spec: SandboxSpec, image: Path | None) -> Hashable:
    """Equal for the same files: a folder that was replaced by another of its name is another."""
    folders = {"": spec.base, **spec.read_only}
    seen = tuple((at, path, _identity(path)) for at, path in sorted(folders.items()) if path)
    return (spec.workdir, image, seen)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
