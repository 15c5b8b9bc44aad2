"""Servers that another process runs, found by the file that it writes."""

import asyncio
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from gagar_mcore.engine.http import Endpoint, HttpClient
from gagar_mcore.engine.protocol import EngineError

WAKE_S = 10.0
_ENDPOINT = TypeAdapter(Endpoint)


@dataclass(frozen=True, slots=True)
class AttachedServer:
    """A Server that is not ours to end; whether it lives, only its health tells. right: see `_take`."""

    endpoint: Endpoint
    receiver: Path | None = None
    right: IO[Any] | None = None
    ended: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def name(self) -> str:
        return f"SGLang's server at {self.endpoint.url}"

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def obituary(self) -> str:
        return f"{self.name} is given up"

    def kill(self) -> None:
        """Let go of it."""
        if not self.ended.done():
            self.ended.set_result(0)
        if self.right is not None:
            self.right.close()

    async def close(self) -> None:
        self.kill()


async def attach_server(file: Path, deadline_s: float) -> AttachedServer:
    """Raises EngineError where no healthy server is found in time, or another run has it."""
    right = _take(file)
    try:
        endpoint = _endpoint(right)
        await _wake(endpoint, deadline_s)
    except BaseException:
        right.close()
        raise
    receiver = receiver_beside(file)
    return AttachedServer(endpoint, receiver if receiver.is_dir() else None, right)


def _take(file: Path) -> IO[Any]:
    """The exclusive right to the server, while it is held and this process lives: two runs would give it weights by turns, under
    the same versions. Raises EngineError."""
    held = _open(file)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        reason = "another run has this server" if isinstance(error, BlockingIOError) else error.strerror
        raise EngineError(f"engine.server.attach: {file}: {reason}; each run locks a server of its own") from error
    return held


async def _wake(endpoint: Endpoint, deadline_s: float) -> None:
    """Wait for a sign of health, which a server does not give that a killed run has left paused."""
    client = HttpClient(endpoint)
    try:
        with suppress(EngineError):
            await client.call("/continue_generation", WAKE_S, {}, admin=True)
        await client.wait_healthy(deadline_s)
    finally:
        await client.close()


def receiver_beside(file: Path) -> Path:
    """The mailbox of the receiver that runs beside the server whose address `file` has."""
    return file.with_suffix(".receiver")


def find_addresses(attach: str | Sequence[str]) -> list[Path]:
    """The files that `engine.server.attach` names, and those of policies in directories that it names, as they are now."""
    named = [Path(name) for name in ([attach] if isinstance(attach, str) else attach)]
    return [file for path in named for file in (sorted(path.glob("policy*.json")) if path.is_dir() else [path])]


def read_address(file: Path) -> Endpoint:
    """Raises EngineError."""
    with _open(file) as found:
        return _endpoint(found)


def _open(file: Path) -> IO[Any]:
    try:
        return open(file, "r+b")
    except OSError as error:
        raise EngineError(f"engine.server.attach: {file}: {error.strerror}; start `gagar serve` first") from error


def _endpoint(found: IO[Any]) -> Endpoint:
    try:
        return _ENDPOINT.validate_json(found.read())
    except ValidationError as error:
        raise EngineError(f"engine.server.attach: {found.name}: no file that `gagar serve` has written") from error


@contextmanager
def write_address(file: Path, endpoint: Endpoint) -> Iterator[None]:
    """For this user alone, as long as the server runs, or until another of the same name has taken its place."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        json.dump(asdict(endpoint), out)
    temporary.replace(file)
    try:
        yield
    finally:
        with suppress(EngineError):
            if read_address(file) == endpoint:
                file.unlink()
