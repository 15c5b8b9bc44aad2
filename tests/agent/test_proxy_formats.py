"""Both APIs tell the same conversation: what an agent says and hears in either is one record."""

import json
from typing import Any

import httpx
import pytest
from proxied import (
    ANTHROPIC_BASH,
    BOTH,
    QWEN3,
    RENDERERS,
    Scripted,
    anthropic_agent,
    bash,
    events,
    openai_agent,
    recorder_of,
    with_client,
)

from gagar_mcore.agent.calls import Answer, ToolCall
from gagar_mcore.agent.context import Context
from gagar_mcore.agent.proxy.anthropic_api import Anthropic
from gagar_mcore.agent.proxy.conversation import Call, Refused, Said
from gagar_mcore.agent.proxy.openai_api import OpenAi
from gagar_mcore.agent.proxy.recorder import Recorder

SCRIPT = [bash("ls", "look", "hm"), Answer("", "", BOTH), Answer("done")]


def record(agent: Any, renderer: Any) -> Recorder:
    recorder = recorder_of(Scripted(renderer, list(SCRIPT)), renderer=renderer)
    with_client(recorder, agent)
    return recorder


@pytest.mark.parametrize("renderer", RENDERERS, ids=["tiny", "qwen3", "mimo"])
def test_an_agent_of_either_api_leaves_the_same_record(renderer: Any) -> None:
    one, other = record(openai_agent, renderer), record(anthropic_agent, renderer)
    assert one.edits == other.edits == 0
    assert one.segments[0].transcript.token_ids == other.segments[0].transcript.token_ids
    assert [turn.observation for turn in other.segments[0].transcript.turns] == ["ran", "ran\nran", ""]


@pytest.mark.parametrize("renderer", RENDERERS, ids=["tiny", "qwen3", "mimo"])
def test_tokens_are_counted_as_they_would_be_read_and_nothing_comes_of_it(renderer: Any) -> None:
    """Also of an edited history, of a long one, and of one that ends with an answer."""
    recorder = recorder_of(Scripted(renderer, [Answer("said"), Answer("so")]), renderer=renderer)
    hello, said = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "said"}
    long = {"role": "user", "content": "a word " * 4000}

    async def use(client: httpx.AsyncClient) -> None:
        async def count(*messages: dict[str, Any]) -> int:
            reply = await client.post("/v1/messages/count_tokens", json={"model": "m", "messages": messages})
            return int(reply.json()["input_tokens"])

        await client.post("/v1/messages", json={"model": "m", "max_tokens": 99, "messages": [hello]})
        opening, read = [Context("user", "hello")], len(recorder.segments[0].transcript.token_ids)
        assert await count(hello) == len(renderer.opening(opening))
        assert await count(hello, said) == read + len(renderer.following([]))
        assert await count(hello, said, long) == read + len(renderer.following([Context("user", long["content"])]))
        assert await count(long, said, hello) == (
            len(renderer.opening([Context("user", long["content"])]) + renderer.answer(Answer("said")))
            + len(renderer.following(opening))
        )
        assert recorder.tokens == read
        await client.post("/v1/messages", json={"model": "m", "max_tokens": 99, "messages": [hello, said, hello]})

    with_client(recorder, use)
    assert (recorder.edits, [request.session_id for request in recorder.engine.asked]) == (0, ["g-m00", "g-m00"])


def test_anthropics_stream_says_what_the_whole_answer_says() -> None:
    body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "x"}], "tools": [ANTHROPIC_BASH]}

    async def use(client: httpx.AsyncClient) -> None:
        whole = (await client.post("/v1/messages", json=body)).json()
        streamed = events((await client.post("/v1/messages", json=body | {"stream": True})).text)
        assert [event["type"] for event in (streamed[0], *streamed[-2:])] == ["message_start", "message_delta", "message_stop"]
        assert streamed[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"
        deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
        assert [d["type"] for d in deltas] == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
        blocks = [event["content_block"] for event in streamed if event["type"] == "content_block_start"]
        assert [block["type"] for block in blocks] == [block["type"] for block in whole["content"]]
        assert deltas[2]["text"] == whole["content"][1]["text"] == "look"

    with_client(recorder_of(Scripted(QWEN3, [SCRIPT[0], SCRIPT[0]])), use)


def test_values_that_are_no_texts_have_the_types_of_their_schema() -> None:
    """MiMo writes every value as text."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "all": {"type": "boolean"}, "name": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    arguments = {"n": 3, "all": True, "name": "7"}

    async def use(client: httpx.AsyncClient) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools}
        message = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
        assert Call.of("f", arguments).arguments == message["tool_calls"][0]["function"]["arguments"]

    for renderer in RENDERERS:
        with_client(recorder_of(Scripted(renderer, [Answer("", "", (ToolCall("f", arguments),))]), renderer=renderer), use)


@pytest.mark.parametrize(
    "arguments",
    ['{"command": "ls"}', '{ "command" :"ls" }', '{"command": "\\u006cs"}'],
)
def test_a_call_is_the_same_however_its_arguments_are_written(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    body = OpenAi().read(_body([{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user", "content": "x"}]))
    assert body.asked.messages[0] == Said("", "", (Call.of("bash", {"command": "ls"}),))


def test_arguments_that_are_no_object_are_refused() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "ls"}}
    with pytest.raises(Refused, match="arguments of a call of bash are no JSON object"):
        OpenAi().read(_body([{"role": "assistant", "content": None, "tool_calls": [call]}]))


def test_an_anthropic_tool_of_the_server_is_refused() -> None:
    body = b'{"model": "m", "max_tokens": 9, "messages": [], "tools": [{"type": "bash_20250124", "name": "bash"}]}'
    with pytest.raises(Refused, match=r"tools\.0"):
        Anthropic().read(body)


def _body(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()
