"""SGLang's server as a child process: started with keys of its own, healthy within a deadline, ended by its pid."""

import asyncio
import errno
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.http import Endpoint, wait_healthy
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.engine.sglang_flags import Serving, server_environment, server_flags
from gagar_mcore.launcher.local import log_tail

EXIT_GRACE_S = 5.0
MODULE = "gagar_mcore.engine.sglang_launch"


class Server(Protocol):
    """`ended` is done when the server is."""

    @property
    def name(self) -> str: ...

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def receiver(self) -> Path | None:
        """The mailbox of what brings weights to its host, see `weights.receiver`; None where this process does."""

    @property
    def ended(self) -> asyncio.Future[int]: ...

    @property
    def alive(self) -> bool: ...

    def obituary(self) -> str:
        """How it ended."""

    def kill(self) -> None:
        """At once, without waiting."""

    async def close(self) -> None: ...


@dataclass(slots=True)
class ServerProcess:
    """A server that answers at `endpoint`; standard output and error are appended to `log`."""

    process: asyncio.subprocess.Process
    endpoint: Endpoint
    log: Path
    ended: asyncio.Task[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = asyncio.create_task(self.process.wait())

    @classmethod
    async def spawn(
        cls, python: str, flags: Sequence[str], environment: Mapping[str, str], endpoint: Endpoint, log: Path
    ) -> "ServerProcess":
        """Raises EngineError where `python` cannot be run."""
        keys = {"GAGAR_ENGINE_KEY": endpoint.key, "GAGAR_ENGINE_ADMIN_KEY": endpoint.admin_key}
        log.parent.mkdir(parents=True, exist_ok=True)
        # SGLang writes its settings to the log, keys among them.
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *(python, "-m", MODULE, *flags),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment, **keys},
            )
        except OSError as error:
            raise EngineError(f"engine.server.python: {python}: {error.strerror}; name a Python that has SGLang") from error
        finally:
            os.close(output)
        return cls(process, endpoint, log)

    @property
    def receiver(self) -> None:
        return None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    @property
    def name(self) -> str:
        return f"SGLang's server {self.pid}"

    async def wait_healthy(self, deadline_s: float) -> None:
        """Raises EngineError where it ends or is not healthy in time."""
        waiting = asyncio.create_task(wait_healthy(self.endpoint, deadline_s))
        try:
            await asyncio.wait([waiting, self.ended], return_when=asyncio.FIRST_COMPLETED)
            if not self.alive:
                raise EngineError(self.obituary())
            if waiting.exception() is not None:
                raise EngineError(f"{self.name} was not ready within {deadline_s:g} s; {self._log_end()}")
        finally:
            waiting.cancel()

    def obituary(self) -> str:
        return f"{self.name} ended with code {self.process.returncode}; {self._log_end()}"

    async def close(self) -> None:
        """End it: gently, then by force."""
        if self.alive:
            self.process.terminate()
            await asyncio.wait([self.ended], timeout=EXIT_GRACE_S)
        self.kill()
        await self.ended

    def kill(self) -> None:
        """Its own children die with it."""
        if self.alive:
            self.process.kill()

    def _log_end(self) -> str:
        end = log_tail(self.log)
        for key in (self.endpoint.key, self.endpoint.admin_key):
            end = end.replace(key, "...")
        return f"its log {self.log} ends with:\n{end}"


async def start_server(serving: Serving, section: EngineSection, log: Path, number: int = 0) -> ServerProcess:
    """A healthy server with fresh keys, the `number`th of this machine. Raises EngineError."""
    server = section.server
    port = _free_port(server.host, server.port + number if server.port else 0)
    endpoint = Endpoint(f"http://{server.host}:{port}", secrets.token_hex(32), secrets.token_hex(32))
    flags, environment = server_flags(serving, section, port, number * server.tp), server_environment(section)
    process = await ServerProcess.spawn(server.python or sys.executable, flags, environment, endpoint, log)
    try:
        await process.wait_healthy(section.start_timeout_s)
    except BaseException:
        process.kill()
        await process.ended
        raise
    return process


def _free_port(host: str, wanted: int) -> int:
    """`wanted`, or any where that is 0. Raises EngineError where it cannot be had."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise EngineError(f"engine.server.port: {wanted}: {error.strerror}; name a free one, or 0") from error
            raise EngineError(f"engine.server.host: {host}: {error.strerror}; give an address of this machine") from error
        port: int = probe.getsockname()[1]
        return port
