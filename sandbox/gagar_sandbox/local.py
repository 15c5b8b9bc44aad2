"""One sandbox of this machine: what may be asked of a live bubblewrap process."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast, get_args

from gagar_sandbox.asked import check_bounds, check_command, check_path, check_size
from gagar_sandbox.bwrap import HOME
from gagar_sandbox.cell import Cell
from gagar_sandbox.types import ExecResult, Limits, OnOutput, Outcome, SandboxLost

ANSWER_S = 60.0
OVERHEAD_BYTES = 4096
ENVIRONMENT = {"PATH": f"{HOME}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "USER": "sandbox", "LANG": "C.UTF-8"}

OnClose = Callable[["LocalSandbox", Cell], Awaitable[None]]


class LocalSandbox:
    """Made by LocalPool.acquire. Calls run one after the other; a cancelled one stops what it started inside."""

    def __init__(self, cell: Cell, limits: Limits, on_close: OnClose, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self._cell = cell
        self._limits = limits
        self._environment = environment
        self._on_close = on_close
        self._turn = asyncio.Lock()
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
        variables = [f"{name}={value}" for name, value in {**self._environment, **(env or {})}.items()]
        check_command(command, variables)
        check_bounds(timeout_s, output_limit)
        check_size(len(stdin), "stdin", self._limits)
        bounds = [str(timeout_s).encode(), str(output_limit).encode(), b"1" if on_output else b"0"]
        request = [b"exec", *bounds, _list(command), _list(variables), stdin]
        most, timeout_s = 2 * output_limit + OVERHEAD_BYTES, timeout_s + ANSWER_S
        async with self._turn:
            started = time.monotonic()
            try:
                reply = await self._held.link.call(*request, reply_bytes=most, timeout_s=timeout_s, on_output=on_output)
                result = self._result(reply, time.monotonic() - started)
            except SandboxLost:
                if self._closing or not self._cell.ran_out_of_memory():
                    raise
                return ExecResult("out_of_memory", 137, b"", b"", False, time.monotonic() - started)
            return replace(result, outcome="out_of_memory") if self._held.ran_out_of_memory() else result

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """See Sandbox.read. A relative path starts from the workdir."""
        check_path(path)
        return await self._file(path, b"read", os.fsencode(path), str(max_bytes).encode(), reply_bytes=max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """See Sandbox.write. A relative path starts from the workdir; an existing file keeps its mode."""
        check_path(path)
        check_size(len(data), path, self._limits)
        await self._file(path, b"write", os.fsencode(path), data, reply_bytes=0)

    async def snapshot(self) -> None:
        """See Sandbox.snapshot. Where files are seen under an overlay it copies nothing."""
        async with self._turn:
            await self._held.snapshot()

    async def reset(self) -> None:
        """See Sandbox.reset. Waits for a running call to end. A sandbox that was lost lives again."""
        async with self._turn:
            await self._held.reset()

    async def close(self) -> None:
        """See Sandbox.close. Cancelled, it goes on by itself."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    @property
    def _held(self) -> Cell:
        """Not ours any more once we are closed: it may be another's by then."""
        if self._closing:
            raise SandboxLost("the sandbox is closed")
        return self._cell

    async def _close(self) -> None:
        await self._on_close(self, self._cell)

    async def _file(self, path: str, *request: bytes, reply_bytes: int) -> bytes:
        async with self._turn:
            match await self._held.link.call(*request, reply_bytes=reply_bytes + OVERHEAD_BYTES, timeout_s=ANSWER_S):
                case [b"ok", data] if len(data) <= reply_bytes:
                    return data
                case [b"error", code, reason] if re.fullmatch(rb"[0-9]{1,4}", code):
                    raise OSError(int(code), reason.decode(errors="replace"), path)
            raise self._held.link.nonsense("a file request")

    def _result(self, reply: list[bytes], seconds: float) -> ExecResult:
        match reply:
            case [outcome, code, truncated, stdout, stderr] if outcome.decode(errors="replace") in get_args(Outcome):
                if re.fullmatch(rb"[0-9]{1,3}", code) and truncated in (b"0", b"1"):
                    name = cast(Outcome, outcome.decode())
                    return ExecResult(name, int(code), stdout, stderr, truncated == b"1", seconds)
        raise self._held.link.nonsense("a command")


def _list(words: Iterable[str]) -> bytes:
    return b"\0".join(os.fsencode(word) for word in words)
