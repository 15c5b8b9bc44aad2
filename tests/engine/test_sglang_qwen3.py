"""A Qwen3 as policy and as grader on SGLang's real server, by `gagar serve`: `make test-sglang`."""

import asyncio
import json
import socket
from contextlib import contextmanager

import httpx
import pytest
import torch
from proxied import (
    ANTHROPIC_BASH,
    BOTH,
    OPENAI_BASH,
    anthropic_agent,
    bash,
    client_of,
    events,
    open_socket,
    openai_agent,
    recorder_of,
)
from qwen3 import AFTERWARDS, COMMANDS, COMPANIONS, CONTEXTS, MODEL, OPENING, RENDERER, TOOLS, learn
from served import Reference, Serve, needs_sglang, open_run, publish, random_tensors

from gagar_mcore.agent.calls import Answer
from gagar_mcore.agent.context import Context
from gagar_mcore.agent.proxy.conversation import Call, Said
from gagar_mcore.agent.proxy.segments import joined
from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.agent.session import SessionLimits
from gagar_mcore.agent.transcript import Transcript
from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.engine.attach import read_address
from gagar_mcore.engine.protocol import GenerateRequest
from gagar_mcore.engine.sglang import attach_sglang
from gagar_mcore.engine.sglang_flags import Serving

pytestmark = needs_sglang
CONTEXT, TEMPERATURE = 1000, 0.5
LIMITS = SessionLimits(max_turns=8, max_new_tokens=100, max_context=CONTEXT, temperature=TEMPERATURE, deadline_s=60.0)
TOLERANCE = 2e-3


class Run:
    """Weights, and servers that start side by side. The policy's tells of experts, the grader's has a port that is named."""

    def __init__(self, directory):
        self.layout = open_run(directory / "run")
        self.weights = [publish(self.layout, 0, MODEL, random_tensors(MODEL, 0), COMPANIONS)]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        policy = [f"model.init={self.weights[0]}", f"rollout.max_context={CONTEXT}", "trainer.routing=replay"]
        self.policy = Serve(self.layout, "policy", *policy)
        learned = learn(self.weights[0], directory / "scratch")
        self.weights.append(publish(self.layout, 1, MODEL, learned, COMPANIONS))
        grader = [f"grading.model={self.weights[1]}", f"grading.engine.server.port={self.port}"]
        self.grader = Serve(self.layout, "grader", *grader)
        self.references = [Reference(directory) for directory in self.weights]

    def close(self):
        self.policy.close()
        self.grader.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("qwen3"))
    try:
        run.policy.wait()
        run.grader.wait()
        yield run
    finally:
        run.close()


def with_policy(run, version, use):
    """`use(engine)`, on the served policy brought to `version`."""
    section = EngineSection(kind="sglang", server=ServerSection(attach=str(run.policy.address)), deadline_s=60.0)
    serving = Serving("policy", run.weights[version], version, MODEL, CONTEXT, record_experts=True)

    async def main():
        engine = await attach_sglang(run.policy.address, serving, section)
        try:
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(main(), 120))


def check(transcript, version, reference, temperature):
    """Every token that was generated has the log-prob that transformers gives it in its place, and the version that drew it."""
    ids, mask = transcript.token_ids.tolist(), torch.tensor(transcript.loss_mask)[1:].bool()
    told = torch.tensor(transcript.logprobs)[1:]
    torch.testing.assert_close(told[mask], reference.logprobs(ids, temperature)[mask], atol=TOLERANCE, rtol=0)
    assert (told[~mask] == 0).all()
    answers = [(span.start, span.end) for span in transcript.weight_spans]
    assert answers == transcript.answers and {span.version for span in transcript.weight_spans} == {version}
    assert [i for i, own in enumerate(transcript.loss_mask) if own] == [i for start, end in answers for i in range(start, end)]


def test_a_session_of_several_turns_has_the_log_probs_and_experts_of_the_model(run):
    transcript = Transcript()

    async def session(engine):
        transcript.add_context(RENDERER.prompt("fix it", TOOLS))
        for turn, seen in enumerate(("a.py", "", "<|im_end|> é")):
            asked = GenerateRequest("talk", transcript.context.tolist(), 30, 1.0, turn, RENDERER.stop_token_ids)
            [answer] = await engine.generate([asked])
            transcript.add_generation(answer)
            transcript.add_context(RENDERER.observation(seen))

    with_policy(run, 0, session)
    check(transcript, 0, run.references[0], 1.0)
    last = transcript.answers[-1][1] - 1
    told = transcript.experts()[:last]
    expected = run.references[0].experts(transcript.token_ids.tolist())[:last]
    assert torch.equal(torch.tensor(told).long().sort(-1).values, expected)


@pytest.mark.parametrize("agent", [openai_agent, anthropic_agent])
def test_an_agent_behind_the_proxy_leaves_the_very_tokens_of_its_turns(run, agent):
    """A policy that calls tools, in both APIs."""

    async def session(engine):
        recorder = recorder_of(engine, LIMITS)
        async with open_socket(recorder) as path, client_of(path) as client:
            usage = await agent(client)
        await recorder.close()
        return recorder, usage

    recorder, usage = with_policy(run, 1, session)
    whole = joined(recorder.segments)
    check(whole, 1, run.references[1], TEMPERATURE)
    said = [message for message in recorder.segments[0].history if isinstance(message, Said)]
    assert [len(message.calls) for message in said] == [1, 2, 0] and said[0].thinking == "hm"
    assert recorder.edits == 0 and all(turn.ok for turn in whole.turns)
    assert usage == [(start, end - start) for start, end in whole.answers]
    between = zip([0, *(end for _, end in whole.answers)], [start for start, _ in whole.answers], strict=False)
    assert [whole.token_ids[start:end].tolist() for start, end in between] == list(CONTEXTS)
    assert said[0].calls[0].said.arguments["command"] in COMMANDS
    assert whole.token_ids.tolist()[slice(*whole.answers[0])] in [RENDERER.answer(bash(c, "look", "hm")) for c in COMMANDS]
    assert [whole.token_ids[slice(*answer)].tolist() for answer in whole.answers[1:]] == list(map(RENDERER.answer, AFTERWARDS))


def openai_heard(told):
    """What the agent makes of a stream."""
    deltas = [event["choices"][0]["delta"] for event in told]
    functions = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    calls = tuple(Call.of(function["name"], json.loads(function["arguments"])) for function in functions)
    words, thoughts = ("".join(delta.get(name) or "" for delta in deltas) for name in ("content", "reasoning_content"))
    return Said(words, thoughts, calls)


def anthropic_heard(told):
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    names = [event["content_block"].get("name") for event in told if event["type"] == "content_block_start"]
    arguments = [json.loads(delta["partial_json"]) for delta in deltas if "partial_json" in delta]
    calls = tuple(Call.of(name, given) for name, given in zip(filter(None, names), arguments, strict=True))
    words, thoughts = ("".join(delta.get(name, "") for delta in deltas) for name in ("text", "thinking"))
    return Said(words, thoughts, calls)


ASKED = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "fix it"}]}
OPENAI_ASKED = ASKED | {"messages": [{"role": "system", "content": "be brief"}, *ASKED["messages"]], "tools": [OPENAI_BASH]}
ANTHROPIC_ASKED = ASKED | {"system": "be brief", "tools": [ANTHROPIC_BASH]}


@pytest.mark.parametrize(
    ("path", "asked", "heard"),
    [("/v1/chat/completions", OPENAI_ASKED, openai_heard), ("/v1/messages", ANTHROPIC_ASKED, anthropic_heard)],
)
def test_a_streamed_answer_is_the_recorded_one(run, path, asked, heard):
    async def session(engine):
        recorder = recorder_of(engine, LIMITS)
        async with open_socket(recorder) as socket, client_of(socket) as client:
            told = events((await client.post(path, json=asked | {"stream": True})).text)
        return recorder, told

    recorder, told = with_policy(run, 1, session)
    check(recorder.segments[0].transcript, 1, run.references[1], TEMPERATURE)
    assert heard(told) == recorder.segments[0].history[-1]
    assert heard(told).calls and heard(told).thinking == "hm"


@contextmanager
def grader_client(run):
    endpoint = read_address(run.grader.address)
    headers = {"authorization": f"Bearer {endpoint.key}"}
    with httpx.Client(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
        yield client


def test_a_served_grader_speaks_in_messages_at_its_port_and_reads_thoughts_and_calls(run):
    with grader_client(run) as client:
        assert client.base_url == f"http://127.0.0.1:{run.port}"
        assert client.get("/health").status_code == 200
        assert client.post("/v1/chat/completions", json=OPENAI_ASKED, headers={"authorization": ""}).status_code == 401
        reply = client.post("/v1/chat/completions", json=OPENAI_ASKED | {"temperature": 0}).json()
    [choice] = reply["choices"]
    message = choice["message"]
    assert (message["content"].strip(), message["reasoning_content"].strip()) == ("look", "hm")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["bash"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"])["command"] in COMMANDS
    assert choice["finish_reason"] == "tool_calls"
    assert reply["usage"]["prompt_tokens"] == len(CONTEXTS[0])
    assert run.grader.address.stat().st_mode & 0o077 == 0


def test_the_ids_of_our_renderer_are_those_of_the_servers_template(run):
    """Behind a session of both kinds of turns, calls and their results included."""
    renderer = load_renderer(run.weights[0])
    calls = [
        {"id": str(i), "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for i, call in enumerate(BOTH)
    ]
    said = {"role": "assistant", "content": "look", "reasoning_content": "hm", "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "é\n"} for call in calls]
    later = [{"role": "assistant", "content": "done"}, {"role": "user", "content": "more"}]
    messages = [*OPENAI_ASKED["messages"], said, *results, *later]
    with grader_client(run) as client:
        told = client.post("/tokenize", json={"messages": messages, "tools": [OPENAI_BASH]})
    assert told.status_code == 200, told.text
    assert told.json()["tokens"] == [
        *renderer.opening(OPENING, TOOLS),
        *renderer.answer(Answer("look", "hm", BOTH)),
        *renderer.following([Context("tool", "é\n")] * 2),
        *renderer.answer(Answer("done")),
        *renderer.following([Context("user", "more")]),
    ]
