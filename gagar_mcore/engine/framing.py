"""Messages between an engine's process and its controller: JSON behind a four-byte length."""

import asyncio
import base64
import json
import struct
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gagar_mcore.engine.protocol import EngineError

MAX_FRAME_BYTES = 64 * 2**20
_LENGTH = struct.Struct("!I")


def encode_frame(message: dict[str, Any]) -> bytes:
    """Raises EngineError where the message is longer than `MAX_FRAME_BYTES`."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(_bounded(len(body))) + body


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, None where the other end is gone."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    size = _bounded(_LENGTH.unpack(header)[0])
    body = stream.read(size)
    return json.loads(body) if len(body) == size else None


async def read_frame_async(stream: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message, None where the other end is gone."""
    try:
        header = await stream.readexactly(_LENGTH.size)
        return json.loads(await stream.readexactly(_bounded(_LENGTH.unpack(header)[0])))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def pack_array(array: npt.NDArray[Any]) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "shape": array.shape, "data": base64.b64encode(array.tobytes()).decode()}


def unpack_array(packed: dict[str, Any]) -> npt.NDArray[Any]:
    return np.frombuffer(base64.b64decode(packed["data"]), packed["dtype"]).reshape(packed["shape"])


def _bounded(size: int) -> int:
    if size > MAX_FRAME_BYTES:
        raise EngineError(f"a message of {size} bytes exceeds the bound of {MAX_FRAME_BYTES}; ask for less in one call")
    return size
