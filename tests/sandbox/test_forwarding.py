"""A port inside that leads to a socket of the host: the one way out that a sandbox can be given."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gagar_sandbox import SandboxSpec, forwarding
from gagar_sandbox.local import LocalSandbox

CLIENT = """
import socket
with socket.create_connection(("127.0.0.1", 8000)) as s:
    s.sendall(b"x" * 300000 + b"!")
    heard = b"".join(iter(lambda: s.recv(65536), b""))
print(len(heard), heard[-2:])
"""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readuntil(b"!")).upper())
    await writer.drain()
    writer.close()


def test_a_client_inside_talks_to_a_server_outside(use: Callable[..., None], base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()

    async def body(sandbox: LocalSandbox) -> None:
        server = await asyncio.start_unix_server(echo, folder / "s", limit=1 << 20)
        done = await sandbox.exec(forwarding("/sockets/s", 8000, ["python3", "-c", CLIENT]), timeout_s=30)
        server.close()
        assert (done.exit_code, done.stdout) == (0, b"300001 b'X!'\n"), done.stderr
        after = await sandbox.exec(["python3", "-c", CLIENT], timeout_s=30)
        assert b"ConnectionRefusedError" in after.stderr

    use(body, SandboxSpec(base, read_only={"/sockets": folder}))


@pytest.mark.parametrize(
    ("command", "code"),
    [(["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["none"], 127), (["/app/hello.txt"], 126)],
)
def test_the_exit_code_is_the_commands(command: list[str], code: int, use: Callable[..., None]) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        assert (await sandbox.exec(forwarding("/none", 8000, command), timeout_s=30)).exit_code == code

    use(body)


def test_a_connection_to_nowhere_is_closed(use: Callable[..., None]) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        client = CLIENT.replace("s.sendall", "None and s.sendall")
        done = await sandbox.exec(forwarding("/none", 8000, ["python3", "-c", client]), timeout_s=30)
        assert done.stdout == b"0 b''\n", done.stderr

    use(body)
