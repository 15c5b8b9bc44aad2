"""The host's end of the conversation with a sandbox's PID 1. Nothing that comes from inside is trusted."""

import asyncio
import socket

from gagar_sandbox.inside.frames import pack, unpack
from gagar_sandbox.process import Process
from gagar_sandbox.types import OnOutput, SandboxLost

STOP_S = 10.0
PART_BYTES = 1 << 17


class Link:
    """Requests to a process, to be made one after the other. After any failure the process is dead and every call raises
    SandboxLost."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, socket: socket.socket, process: Process) -> "Link":
        """Over a socket whose other end the process has; owns both."""
        reader, writer = await asyncio.open_connection(sock=socket)
        return cls(process, reader, writer)

    async def call(self, *request: bytes, reply_bytes: int, timeout_s: float, on_output: OnOutput | None = None) -> list[bytes]:
        """Send one request and return the reply's fields. Cancelled, it stops what runs inside before it lets go. `on_output` is
        given what comes before the reply; without it nothing may."""
        if self._writer.is_closing():
            raise SandboxLost("the sandbox is closed")
        self._writer.write(pack(*request))
        return await self.reply(reply_bytes, timeout_s, on_output)

    async def reply(self, reply_bytes: int, timeout_s: float, on_output: OnOutput | None = None) -> list[bytes]:
        receiving = asyncio.create_task(self._receive_all(reply_bytes, on_output))
        try:
            return await asyncio.wait_for(asyncio.shield(receiving), timeout_s)
        except TimeoutError as error:
            raise SandboxLost(f"the sandbox did not answer within {timeout_s:.0f} s") from error
        except (EOFError, OSError) as error:
            raise SandboxLost("the sandbox has died") from error
        except ValueError as error:
            raise SandboxLost(f"the sandbox answered nonsense: {error}") from error
        except asyncio.CancelledError:
            self._writer.write(pack(b"cancel"))
            await asyncio.wait({receiving}, timeout=STOP_S)
            raise
        finally:
            if not receiving.done() or receiving.cancelled() or receiving.exception():
                receiving.cancel()
                self.kill()

    def nonsense(self, request: str) -> SandboxLost:
        """The error of a reply that is none; the sandbox that sent it is not asked again."""
        self.kill()
        return SandboxLost(f"the sandbox answered nonsense to {request}")

    def kill(self) -> None:
        self._process.kill()
        self._writer.close()

    async def close(self) -> None:
        """Kill the process and wait for its end. Raises SandboxLost where that does not come."""
        self.kill()
        if not await self._process.wait(STOP_S):
            raise SandboxLost("a killed sandbox has not ended")

    async def _receive_all(self, limit: int, on_output: OnOutput | None) -> list[bytes]:
        if on_output is None:
            return await self._receive(limit)
        while True:
            match await self._receive(max(limit, PART_BYTES)):
                case [b"stdout", data]:
                    on_output("stdout", data)
                case [b"stderr", data]:
                    on_output("stderr", data)
                case reply:
                    return reply

    async def _receive(self, limit: int) -> list[bytes]:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > limit:
            raise ValueError(f"a reply of {size} bytes where {limit} are the most")
        return unpack(await self._reader.readexactly(size))
