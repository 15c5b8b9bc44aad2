"""The host's end of the conversation with a sandbox's PID 1. Nothing that comes from inside is trusted."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from gagar_sandbox.inside.frames import pack, unpack
from gagar_sandbox.process import Process
from gagar_sandbox.types import SandboxLost

STOP_S = 10.0


class Link:
    """Requests to a process, one at a time. After any failure the process is dead and every call raises SandboxLost."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, words: Sequence[str], inherited: Sequence[int]) -> "Link":
        """Start the process; see Process."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            reader, writer = await asyncio.open_connection(sock=ours)
            on_failure.callback(writer.close)
            link = cls(Process(words, theirs, inherited), reader, writer)  # last, so that nothing can leave it without an owner
            on_failure.pop_all()
            return link

    async def call(self, *request: bytes, reply_bytes: int, timeout_s: float) -> list[bytes]:
        """Send one request and return the reply's fields. Cancelled, it stops what runs inside before it lets go."""
        async with self._turn:
            if self._writer.is_closing():
                raise SandboxLost("the sandbox is closed")
            self._writer.write(pack(*request))
            return await self.reply(reply_bytes, timeout_s)

    async def reply(self, reply_bytes: int, timeout_s: float) -> list[bytes]:
        receiving = asyncio.create_task(self._receive(reply_bytes))
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

    async def complaint(self) -> str:
        """What the process said before it ended or was killed."""
        self.kill()
        await self._process.wait(STOP_S)
        return self._process.said

    async def close(self) -> None:
        """End of input ends PID 1, and the kernel everything else inside. What does not go is killed.
        Raises SandboxLost where even that does not help."""
        self._writer.close()
        try:
            ended = await self._process.wait(STOP_S)
        finally:
            self._process.kill()
        if not ended and not await self._process.wait(STOP_S):
            raise SandboxLost("a killed sandbox has not ended")

    async def _receive(self, limit: int) -> list[bytes]:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > limit:
            raise ValueError(f"a reply of {size} bytes where {limit} are the most")
        return unpack(await self._reader.readexactly(size))
