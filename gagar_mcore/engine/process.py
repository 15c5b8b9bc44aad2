"""A child process that answers framed calls: every call has a deadline, and a dead or hung child fails them all at once."""

import asyncio
import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gagar_mcore.engine.framing import encode_frame, read_frame_async
from gagar_mcore.engine.protocol import EngineError

LOG_TAIL_BYTES = 2000
EXIT_GRACE_S = 5.0


class ChildProcess:
    """`python -m module` with calls on its standard input, answers on its standard output and `log` as its standard error."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._calls = itertools.count()
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._failure: str | None = None
        self._reading = asyncio.create_task(self._read_answers())

    @classmethod
    async def spawn(cls, module: str, log: Path, environment: Mapping[str, str]) -> "ChildProcess":
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **environment},
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._failure is None

    async def call(self, operation: str, deadline_s: float, **arguments: Any) -> dict[str, Any]:
        """The child's answer. A call that is cancelled is cancelled in the child too; one that misses its deadline ends the
        child. Raises EngineError where the child refuses the call, is gone, or misses the deadline."""
        if self._failure is not None:
            raise EngineError(self._failure)
        number = next(self._calls)
        frame = encode_frame({"call": number, "op": operation, **arguments})
        self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(deadline_s):
                return await self._exchange(frame, self._pending[number])
        except TimeoutError as error:
            self._fail(f"engine process {self.pid} did not answer {operation!r} within {deadline_s:g} s and was ended")
            self._process.kill()
            raise EngineError(self._failure) from error
        except asyncio.CancelledError:
            self._write(encode_frame({"call": number, "op": "cancel"}))
            raise
        finally:
            self._pending.pop(number, None)

    async def close(self) -> None:
        """End the child: gently, then by force."""
        self._fail("the engine is closed")
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), EXIT_GRACE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading

    async def _exchange(self, frame: bytes, answer: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        self._write(frame)
        return await answer

    def _write(self, frame: bytes) -> None:
        if self._failure is None and self._process.stdin is not None:
            self._process.stdin.write(frame)

    async def _read_answers(self) -> None:
        assert self._process.stdout is not None
        try:
            while (message := await read_frame_async(self._process.stdout)) is not None:
                self._deliver(message)
        finally:
            code = await self._process.wait()
            self._fail(f"engine process {self.pid} ended with code {code}")

    def _deliver(self, message: dict[str, Any]) -> None:
        answer = self._pending.get(message["call"])
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(EngineError(message["error"]))
        else:
            answer.set_result(message["result"])

    def _fail(self, reason: str) -> None:
        """The first reason stays; every pending call raises it."""
        if self._failure is None:
            self._failure = f"{reason}; its log {self._log} ends with:\n{_tail(self._log)}"
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(EngineError(self._failure))


def _tail(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")
