import asyncio
import io
import struct

import pytest

from gagar_mcore.engine.framing import MAX_FRAME_BYTES, encode_frame, read_frame, read_frame_async
from gagar_mcore.engine.protocol import EngineError

MESSAGE = {"call": 1, "logprobs": [-0.1 - 1e-16, 5e-324], "text": "é\n"}


async def read_async(data: bytes):
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    return await read_frame_async(stream), await read_frame_async(stream)


def test_messages_arrive_as_they_were_sent():
    stream = io.BytesIO(encode_frame(MESSAGE) + encode_frame({}))
    assert [read_frame(stream), read_frame(stream), read_frame(stream)] == [MESSAGE, {}, None]
    assert asyncio.run(read_async(encode_frame(MESSAGE))) == (MESSAGE, None)


@pytest.mark.parametrize("cut", [1, 4, 10])
def test_a_cut_message_is_the_end_of_the_stream(cut):
    data = encode_frame(MESSAGE)[:cut]
    assert read_frame(io.BytesIO(data)) is None
    assert asyncio.run(read_async(data)) == (None, None)


def test_a_message_beyond_the_bound_is_refused_before_it_is_read():
    header = struct.pack("!I", MAX_FRAME_BYTES + 1)
    with pytest.raises(EngineError, match="exceeds the bound"):
        read_frame(io.BytesIO(header))
    with pytest.raises(EngineError, match="exceeds the bound"):
        asyncio.run(read_async(header))
