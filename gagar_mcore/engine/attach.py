"""Servers that another process runs, found by the file that it writes."""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gagar_mcore.engine.http import Endpoint, wait_healthy
from gagar_mcore.engine.protocol import EngineError

_ENDPOINT = TypeAdapter(Endpoint)


@dataclass(frozen=True, slots=True)
class AttachedServer:
    """A Server that is not ours to end; whether it lives, only its health tells."""

    endpoint: Endpoint
    receiver: Path | None = None
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

    async def close(self) -> None:
        self.kill()


async def attach_server(file: Path, deadline_s: float) -> AttachedServer:
    """Raises EngineError where no healthy server is found in time."""
    endpoint = read_address(file)
    await wait_healthy(endpoint, deadline_s)
    receiver = receiver_beside(file)
    return AttachedServer(endpoint, receiver if receiver.is_dir() else None)


def receiver_beside(file: Path) -> Path:
    """The mailbox of the receiver that runs beside the server whose address `file` has."""
    return file.with_suffix(".receiver")


def find_addresses(attach: str | Sequence[str]) -> list[Path]:
    """The files that `engine.server.attach` names, and those of policies in directories that it names, as they are now."""
    named = [Path(name) for name in ([attach] if isinstance(attach, str) else attach)]
    return [file for path in named for file in (sorted(path.glob("policy*.json")) if path.is_dir() else [path])]


def read_address(file: Path) -> Endpoint:
    """Raises EngineError."""
    try:
        return _ENDPOINT.validate_json(file.read_bytes())
    except OSError as error:
        raise EngineError(f"engine.server.attach: {file}: {error.strerror}; start `gagar serve` first") from error
    except ValidationError as error:
        raise EngineError(f"engine.server.attach: {file}: no file that `gagar serve` has written") from error


@contextmanager
def write_address(file: Path, endpoint: Endpoint) -> Iterator[None]:
    """For this user alone, as long as the server runs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        json.dump(asdict(endpoint), out)
    temporary.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
