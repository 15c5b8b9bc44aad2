"""A port of the sandbox's loopback in front of a unix socket, while a command runs: `forward.py SOCKET PORT COMMAND...`."""

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from typing import Any

CHUNK = 1 << 16


async def main(socket: str, port: int, *command: str) -> int:
    """The exit code of the command, 128 + signal where a signal ended it, 127 where there is no such command."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            theirs, ours = await asyncio.open_unix_connection(socket)
            await _both(_copy(reader, ours), _copy(theirs, writer))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        child = await asyncio.create_subprocess_exec(*command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    code = await child.wait()
    server.close()
    return 128 - code if code < 0 else code


async def _both(*copies: Coroutine[Any, Any, None]) -> None:
    """Until either end has hung up: HTTP needs no half-closed connections."""
    tasks = [asyncio.create_task(copy) for copy in copies]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])))
