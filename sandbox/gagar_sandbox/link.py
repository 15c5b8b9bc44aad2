"""The host's end of the conversation with a sandbox's PID 1. Nothing that comes from inside is trusted."""

import asyncio
import contextlib

from gagar_sandbox.inside.frames import pack, unpack
from gagar_sandbox.types import SandboxLost

STOP_S = 10.0
COMPLAINT_BYTES = 4096


class Link:
    """Requests over a process's pipes, one at a time. After any failure the process is dead and every call raises SandboxLost."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    async def call(self, *request: bytes, reply_bytes: int, timeout_s: float) -> list[bytes]:
        """Send one request and return the reply's fields. Cancelled, it stops what runs inside before it lets go."""
        async with self._turn:
            self._write(*request)
            return await self.reply(reply_bytes, timeout_s)

    async def reply(self, reply_bytes: int, timeout_s: float) -> list[bytes]:
        receiving = asyncio.create_task(self._receive(reply_bytes))
        try:
            return await asyncio.wait_for(asyncio.shield(receiving), timeout_s)
        except TimeoutError as error:
            raise SandboxLost(f"the sandbox did not answer within {timeout_s:.0f} s") from error
        except EOFError as error:
            raise SandboxLost("the sandbox has died") from error
        except (OSError, ValueError) as error:
            raise SandboxLost(f"the sandbox answered nonsense: {error}") from error
        except asyncio.CancelledError:
            self._write(b"cancel")
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
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End of input ends PID 1, and the kernel everything else inside; what does not go is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_S)
        except TimeoutError:
            self.kill()
            await asyncio.wait_for(self._process.wait(), STOP_S)
        except asyncio.CancelledError:
            self.kill()
            raise

    async def complaint(self) -> str:
        """What bwrap or PID 1 said before it ended."""
        assert self._process.stderr is not None
        self.kill()
        with contextlib.suppress(TimeoutError):
            said = await asyncio.wait_for(self._process.stderr.read(COMPLAINT_BYTES), STOP_S)
            return said.decode(errors="replace").strip()
        return ""

    def _write(self, *request: bytes) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():
            raise SandboxLost("the sandbox is closed")
        self._process.stdin.write(pack(*request))

    async def _receive(self, limit: int) -> list[bytes]:
        assert self._process.stdout is not None
        size = int.from_bytes(await self._process.stdout.readexactly(4), "big")
        if size > limit:
            raise ValueError(f"a reply of {size} bytes where {limit} are the most")
        return unpack(await self._process.stdout.readexactly(size))
