"""Whatever a client sends and a policy says, the proxy answers in the form of its API and stays up."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxied import BASH, QWEN3, RENDERERS, SECRET, Scripted, recorder_of

from gagar_mcore.agent.calls import Answer, Tool
from gagar_mcore.agent.proxy.endpoint import Endpoint
from gagar_mcore.agent.proxy.http import HttpRequest
from gagar_mcore.agent.proxy.reading import read_answer
from gagar_mcore.agent.renderer import Renderer

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(max_size=8) | st.sampled_from(["<|im_end|>", "<tool_call>", "</parameter>", "{}", "9" * 5000, "[" * 5000])
calls = st.fixed_dictionaries({"id": texts, "function": st.fixed_dictionaries({"name": texts, "arguments": texts})})
blocks = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries({"type": st.just("tool_use"), "id": texts, "name": texts, "input": anything}),
    st.fixed_dictionaries({"type": st.just("tool_result"), "tool_use_id": texts, "content": texts | anything}),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": texts, "signature": texts}),
)
ROLES = ["user", "assistant", "tool", "system"]
messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "tool", "system"]),
        "content": texts | st.lists(blocks, max_size=2) | anything,
    },
    optional={"tool_calls": st.lists(calls, max_size=2), "reasoning_content": texts},
)
functions = st.fixed_dictionaries({"name": texts, "parameters": anything | st.just(BASH)})
tools = st.fixed_dictionaries({"type": st.just("function"), "function": functions, "name": texts, "input_schema": anything})
bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "max_tokens": st.integers(-1, 9), "messages": st.lists(messages, max_size=4)},
    optional={"tools": st.lists(tools, max_size=2), "stream": st.booleans(), "system": texts, "n": anything, "stop": anything},
)
every_template = pytest.mark.parametrize("renderer", RENDERERS, ids=["tiny", "qwen3", "mimo"])


def post(endpoint: Endpoint, path: str, body: bytes) -> tuple[int, bytes]:
    request = HttpRequest("POST", path, {"authorization": f"Bearer {SECRET}"}, body, len(body))
    response = asyncio.run(endpoint(request))
    return response.status, response.body


@every_template
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@settings(max_examples=30)
@given(body=bodies | anything)
def test_any_json_is_answered_or_refused(renderer: Renderer, path: str, body: Any) -> None:
    recorder = recorder_of(Scripted(renderer, [Answer("a")]), renderer=renderer)
    status, answer = post(Endpoint(recorder, SECRET), path, json.dumps(body).encode())
    assert status in (200, 400)
    if status == 400:
        assert json.loads(answer)["error"]["type"] == "invalid_request_error" and recorder.segments == []


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_any_bytes_are_refused(body: bytes) -> None:
    assert post(Endpoint(recorder_of(Scripted(QWEN3, [])), SECRET), CHAT, body)[0] == 400


DEEP = '<tool_call>{"name": "bash", "arguments": {"command": ' + "[" * 3000 + "]" * 3000 + "}}</tool_call>"
TAGS = [
    "<tool_call>",
    "</tool_call>",
    "<function=bash>",
    "</function>",
    "<parameter=command>",
    "</parameter>",
    "<think>",
    "</think>",
]
VALUES = ['{"name": "bash", "arguments": {', '"command": ', "}", "[" * 3000, "9" * 5000, "NaN", "\n", "</think>"]
said = st.lists(st.sampled_from(TAGS + VALUES) | st.text(max_size=4), max_size=8).map("".join)


@every_template
@settings(max_examples=40)
@given(text=said | st.just(DEEP))
def test_any_answer_of_the_policy_can_be_told_to_the_agent_and_told_back(renderer: Renderer, text: str) -> None:
    answer, _ = read_answer(text, renderer.calls, [Tool("bash", "", declared=BASH)])
    for call in answer.calls:
        assert call.said.name == call.name
    recorder = recorder_of(Scripted(renderer, [Answer(text), Answer("b")]), renderer=renderer)
    endpoint = Endpoint(recorder, SECRET)
    asked: list[dict[str, Any]] = [{"role": "user", "content": "p"}]
    tool = {"type": "function", "function": {"name": "bash", "parameters": BASH}}
    for more in ([], [{"role": "user", "content": "q"}]):
        status, body = post(endpoint, CHAT, json.dumps({"model": "m", "messages": asked + more, "tools": [tool]}).encode())
        assert status == 200
        asked.append(json.loads(body)["choices"][0]["message"])
    assert recorder.edits == 0


def test_arguments_of_any_depth_are_taken_or_refused() -> None:
    """Whichever program on the way runs out of stack first: those that all can read are refused at a fixed depth."""
    for depth in (1, 90, *range(840, 1000)):
        arguments = json.dumps({"command": 0})[:-2] + "[" * depth + "]" * depth + "}"
        call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
        told = [{"role": "user", "content": "p"}, {"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "q"}]
        recorder = recorder_of(Scripted(QWEN3, [Answer("a")]))
        status, _ = post(Endpoint(recorder, SECRET), CHAT, json.dumps({"model": "m", "messages": told}).encode())
        assert status == (200 if depth <= 90 else 400)


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"', "[" * 500 + "]" * 500])
def test_a_call_that_an_agent_could_not_read_is_words(value: str) -> None:
    text = f'<tool_call>{{"name": "bash", "arguments": {{"command": {value}}}}}</tool_call>'
    answer, well_formed = read_answer(text, QWEN3.calls, [Tool("bash", "", declared=BASH)])
    assert (answer.text, answer.calls, well_formed) == (text, (), False)


def test_numbers_of_a_schema_that_are_none_are_refused() -> None:
    function = {"name": "f", "parameters": {"properties": {"p": {"maximum": float("inf")}}}}
    asked = {"model": "m", "messages": [{"role": "user", "content": "p"}], "tools": [{"type": "function", "function": function}]}
    status, body = post(Endpoint(recorder_of(Scripted(QWEN3, [])), SECRET), CHAT, json.dumps(asked).encode())
    assert status == 400 and json.loads(body)["error"]["message"].startswith("tools: f: ")
