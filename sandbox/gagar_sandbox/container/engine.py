"""Running an engine's command line under a deadline."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from gagar_sandbox.types import SandboxLost

CHUNK = 1 << 16
Heard = Callable[[bytes], None]


async def ask(words: Sequence[str], timeout_s: float) -> str:
    """What the engine printed. Raises SandboxLost where it failed, with what it said."""
    out, err = bytearray(), bytearray()
    code = await run(words, b"", out.extend, err.extend, timeout_s)
    if code is None:
        raise SandboxLost(f"{' '.join(words[:2])} did not end within {timeout_s:.0f} s")
    if code != 0:
        raise SandboxLost(f"{' '.join(words[:2])} failed: {err.decode(errors='replace').strip()[-500:]}")
    return out.decode(errors="replace").strip()


async def run(words: Sequence[str], stdin: bytes, on_stdout: Heard, on_stderr: Heard, timeout_s: float) -> int | None:
    """The exit code; None where it had to be killed at the deadline. Raises SandboxLost where there is no such engine."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise SandboxLost(f"cannot run {words[0]}: {error}") from error
    assert process.stdin and process.stdout and process.stderr
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(_feed(process.stdin, stdin), _hear(process.stdout, on_stdout), _hear(process.stderr, on_stderr))
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _feed(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a command need not read what it is given
        writer.write(data)
        await writer.drain()
    writer.close()


async def _hear(reader: asyncio.StreamReader, on_data: Heard) -> None:
    while data := await reader.read(CHUNK):
        on_data(data)
