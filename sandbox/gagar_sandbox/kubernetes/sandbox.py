"""One sandbox in a pod: what may be asked of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, cast, get_args

from gagar_sandbox.asked import check_bounds, check_command, check_path, check_size
from gagar_sandbox.bwrap import MIB
from gagar_sandbox.inside.frames import pack
from gagar_sandbox.kubernetes import keeper
from gagar_sandbox.kubernetes.call import PIECE, Call
from gagar_sandbox.kubernetes.live import LivePod, PodLost
from gagar_sandbox.kubernetes.manifest import MAIN
from gagar_sandbox.types import ExecResult, OnOutput, Outcome, SandboxLost

ANSWER_S = 60.0
STOP_S = 20.0


class PodSandbox:
    """Made by KubernetesPool.acquire. Calls run one after the other; a cancelled one stops what it started inside."""

    def __init__(self, pod: LivePod, base: str, on_close: Callable[["PodSandbox"], Coroutine[Any, Any, None]]) -> None:
        self.pod = pod
        self.base = base
        self.lost = False
        self._on_close = on_close
        self._turn = asyncio.Lock()
        self._kept: dict[str, str] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        output_limit: int = 65536,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """See Sandbox.exec. A command that does not exist exits with 127. Of output beyond `output_limit` bytes, for stdout
        and stderr each, head and tail are kept around a line that says how much was cut.
        Raises ValueError where the command is empty or holds a NUL, OSError where stdin is longer than the largest file."""
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        limits = self.pod.shape.limits
        check_command(command, variables)
        check_bounds(timeout_s, output_limit)
        check_size(len(stdin), "stdin", limits)
        async with self._open():
            identity = self.pod.next_id()
            numbers = (identity, int(1000 * timeout_s), output_limit)
            request = pack(
                b"run",
                *(b"%d" % number for number in numbers),
                _list(command),
                _list(variables),
                stdin,
                b"%d" % limits.processes,
                b"%d" % (limits.file_size_mb * MIB),
                b"1" if on_output else b"0",
            )
            result = await self._run(request, identity, timeout_s, output_limit, on_output)
            if self._closing is not None:
                raise SandboxLost(f"the sandbox in pod {self.pod.pod} was closed")
            return result

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """See Sandbox.read. A relative path starts from the workdir."""
        return await self._file(max_bytes, b"read", path, b"%d" % max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """See Sandbox.write. A relative path starts from the workdir; an existing file keeps its mode."""
        check_size(len(data), path, self.pod.shape.limits)
        await self._file(0, b"write", path, data)

    async def snapshot(self) -> None:
        """See Sandbox.snapshot. What the owner may not read, he may from then on."""
        async with self._open():
            await self.pod.kill_all(ANSWER_S)
            self._kept = await keeper.snapshot(self.pod)

    async def reset(self) -> None:
        """See Sandbox.reset."""
        async with self._open():
            await keeper.go_back(self.pod, self.base, self._kept)

    async def close(self) -> None:
        """See Sandbox.close. Cancelled, it goes on by itself."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._on_close(self))
        await asyncio.shield(self._closing)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """One call's turn. The sandbox is lost once a call says so."""
        async with self._turn:
            if self.lost or self._closing is not None:
                raise SandboxLost(f"the sandbox in pod {self.pod.pod} is {'lost' if self.lost else 'closed'}")
            try:
                yield
            except SandboxLost:
                self.lost = True
                raise

    async def _run(
        self, request: bytes, identity: int, timeout_s: float, output_limit: int, on_output: OnOutput | None
    ) -> ExecResult:
        started = time.monotonic()

        async def talk(conversation: Call) -> list[bytes]:
            await conversation.send(request)
            while True:
                match await conversation.receive():
                    case [b"stdout" | b"stderr" as name, data]:
                        if on_output:
                            on_output(cast(Literal["stdout", "stderr"], name.decode()), data)
                    case reply:
                        return reply

        try:
            reply = await self.pod.converse(MAIN, talk, timeout_s=timeout_s + ANSWER_S, reply_bytes=2 * output_limit + PIECE)
            return _result(reply, time.monotonic() - started)
        except PodLost as error:
            if not error.state.out_of_memory:
                raise
            self.lost = True
            return ExecResult("out_of_memory", 137, b"", b"", False, time.monotonic() - started)
        except asyncio.CancelledError:
            await self._stop(identity)
            raise

    async def _stop(self, identity: int) -> None:
        """End the command, or else the sandbox."""
        stopping = asyncio.create_task(self.pod.cancel(identity, STOP_S))
        await asyncio.wait({stopping}, timeout=2 * STOP_S)
        if not stopping.done() or stopping.exception() is not None:
            stopping.cancel()
            self.lost = True

    async def _file(self, reply_bytes: int, kind: bytes, path: str, argument: bytes) -> bytes:
        check_path(path)

        async def talk(conversation: Call) -> bytes:
            await conversation.send(pack(kind, path.encode(errors="surrogateescape"), argument))
            return await conversation.answer(path)

        async with self._open():
            return await self.pod.converse(MAIN, talk, timeout_s=ANSWER_S, reply_bytes=reply_bytes)


def _result(reply: list[bytes], seconds: float) -> ExecResult:
    match reply:
        case [b"done", outcome, code, cut, stdout, stderr, note] if outcome.decode(errors="replace") in get_args(Outcome):
            return ExecResult(cast(Outcome, outcome.decode()), int(code), stdout, stderr + note, cut == b"1", seconds)
        case [b"refused", reason]:
            raise SandboxLost(f"the sandbox refused a command: {reason.decode(errors='replace')}")
    raise SandboxLost("the sandbox answered nonsense to a command")


def _list(words: Sequence[str]) -> bytes:
    return b"".join(word.encode(errors="surrogateescape") + b"\0" for word in words)
