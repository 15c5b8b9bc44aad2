"""The server's end of an exec: protocols v4 and v5 of remote commands over a websocket, as kubelets and API servers have it."""

import asyncio
import json
from asyncio.subprocess import Process

from aiohttp import WSMsgType, web

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
CHUNK = 1 << 15
SUCCESS = {"metadata": {}, "status": "Success"}


async def serve_exec(request: web.Request, process: Process, cut_after: int | None) -> web.WebSocketResponse:
    """Carries a process that has been started. Where the client goes away, or the connection is cut once more than `cut_after`
    bytes were to be sent, the process is left running without input, as container runtimes do."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    allowance = [float("inf") if cut_after is None else cut_after]
    inputs: asyncio.Task[None] | None = None
    try:
        await socket.prepare(request)
        inputs = asyncio.create_task(_take_input(socket, process))
        await asyncio.gather(
            _pump(request, socket, process.stdout, STDOUT, allowance), _pump(request, socket, process.stderr, STDERR, allowance)
        )
        await _send(request, socket, STATUS, json.dumps(_status(await process.wait())).encode(), allowance)
        await socket.close()
    except ConnectionError:
        process.stdin.close()
    finally:
        if inputs is not None:
            inputs.cancel()
    return socket


async def _take_input(socket: web.WebSocketResponse, process: Process) -> None:
    assert process.stdin is not None
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN and process.returncode is None:
            process.stdin.write(data)
        elif channel == CLOSE and socket.ws_protocol == PROTOCOLS[0]:
            process.stdin.close()
    process.stdin.close()


async def _pump(
    request: web.Request, socket: web.WebSocketResponse, source: asyncio.StreamReader, channel: int, allowance: list[float]
) -> None:
    while data := await source.read(CHUNK):
        await _send(request, socket, channel, data, allowance)


async def _send(request: web.Request, socket: web.WebSocketResponse, channel: int, data: bytes, allowance: list[float]) -> None:
    allowance[0] -= len(data)
    if allowance[0] < 0:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("cut")
    await socket.send_bytes(bytes([channel]) + data)


def _status(code: int) -> dict[str, object]:
    """code: negative where a signal ended the process."""
    if code == 0:
        return SUCCESS
    code = 128 - code if code < 0 else code
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
