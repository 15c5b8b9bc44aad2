import asyncio
import socket
import sys
from pathlib import Path

import pytest

from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.engine.attach import attach_server, read_address, write_address
from gagar_mcore.engine.http import Endpoint
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.engine.server import ServerProcess, start_server
from gagar_mcore.engine.sglang import attach_sglang
from gagar_mcore.engine.sglang_flags import Serving
from gagar_mcore.models.presets import preset

ENDPOINT = Endpoint("http://127.0.0.1:9", "the-key", "the-admin-key")
SERVING = Serving("policy", shipped_checkpoint("tiny-mimo-v2"), 0, preset("tiny"), 500)


def section(**server):
    return EngineSection(kind="sglang", start_timeout_s=60.0, server=ServerSection(**server))


def test_a_python_without_sglang_is_named_by_its_log(tmp_path):
    said = r"ended with code 1; its log .*e\.log ends with:\nengine\.server\.python: .*: has no SGLang; name a Python that has"
    with pytest.raises(EngineError, match=said):
        asyncio.run(start_server(SERVING, section(), tmp_path / "e.log"))


def test_a_python_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"engine\.server\.python: /nowhere/python: No such file"):
        asyncio.run(start_server(SERVING, section(python="/nowhere/python"), tmp_path / "e.log"))


def test_an_address_of_another_machine_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"engine\.server\.host: 10\.255\.255\.1: "):
        asyncio.run(start_server(SERVING, section(host="10.255.255.1"), tmp_path / "e.log"))


def test_a_port_in_use_is_named_before_the_server_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EngineError, match=rf"engine\.server\.port: {port}: Address already in use; name a free one, or 0"):
            asyncio.run(start_server(SERVING, section(port=port), tmp_path / "e.log"))
    assert not (tmp_path / "e.log").exists()


def test_the_end_of_a_log_is_shown_without_keys(tmp_path):
    async def scenario():
        flags, log = ["the-key", "the-admin-key"], tmp_path / "e.log"
        server = await ServerProcess.spawn(sys.executable, flags, {}, ENDPOINT, log)
        log.write_text("settings: the-key, the-admin-key")
        await server.close()
        return server.obituary()

    assert asyncio.run(scenario()).endswith("settings: ..., ...")


def test_an_address_is_there_for_this_user_while_the_server_runs(tmp_path):
    file = tmp_path / "servers" / "policy.json"
    with write_address(file, ENDPOINT):
        assert read_address(file) == ENDPOINT
        assert file.stat().st_mode & 0o077 == 0
    assert list(file.parent.iterdir()) == []


def test_a_server_that_one_run_has_is_not_given_to_another(tmp_path):
    """Two runs would give it weights by turns, under the same versions."""

    async def scenario():
        asked = []

        async def serve(reader, writer):
            asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            endpoint = Endpoint(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", "key", "admin")
            with write_address(tmp_path / "policy.json", endpoint):
                first = await attach_server(tmp_path / "policy.json", 10.0)
                with pytest.raises(EngineError, match=r"engine\.server\.attach: .*policy\.json: another run has this server"):
                    await attach_server(tmp_path / "policy.json", 10.0)
                await first.close()
                await (await attach_server(tmp_path / "policy.json", 10.0)).close()
        return asked

    # A run that was killed in an update has left it paused, without a sign of health.
    assert asyncio.run(scenario()) == [b"/continue_generation", b"/health"] * 2


def test_a_server_that_ends_leaves_the_address_of_the_one_in_its_place(tmp_path):
    file, later = tmp_path / "policy.json", Endpoint("http://127.0.0.1:10", "another-key", "the-admin-key")
    first, second = write_address(file, ENDPOINT), write_address(file, later)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert read_address(file) == later
    second.__exit__(None, None, None)
    assert not file.exists()


@pytest.mark.parametrize(("text", "message"), [(None, "No such file"), ("{}", "no file that `gagar serve` has written")])
def test_a_server_to_attach_that_is_not_there_is_named(tmp_path, text, message):
    file = Path(tmp_path / "policy.json")
    if text is not None:
        file.write_text(text)
    with pytest.raises(EngineError, match=rf"engine\.server\.attach: .*policy\.json: {message}"):
        asyncio.run(attach_sglang(file, SERVING, section(attach=str(file))))
