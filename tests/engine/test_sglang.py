"""The engine on SGLang's real server, on this machine's CPU: `make test-sglang`."""

import asyncio
import os
import signal
from dataclasses import replace

import psutil
import pytest
import torch
from served import MODEL, PYTHON, Reference, needs_sglang, open_run, publish_random

from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.engine.attach import AttachedServer
from gagar_mcore.engine.http import Endpoint, HttpClient
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.engine.sglang import SGLangEngine, start_sglang
from gagar_mcore.engine.sglang_flags import Serving
from gagar_mcore.records.store import MANIFEST

pytestmark = needs_sglang
BATCH, CONTEXT = 4, 512
SERVER = ServerSection(python=str(PYTHON), health_deadline_s=20.0)
SECTION = EngineSection(kind="sglang", max_batch=BATCH, threads=1, start_timeout_s=240.0, server=SERVER)
TOLERANCE = 2e-3


class Served:
    """An engine on a loop that outlives each test."""

    def __init__(self, directory):
        self.layout = open_run(directory)
        self.weights = [publish_random(self.layout, version) for version in (0, 1)]
        self.references = [Reference(path) for path in self.weights]
        self.log = self.layout.logs / "engine.log"
        self._loop = asyncio.new_event_loop()
        self.serving = Serving("policy", self.weights[0], 0, MODEL, CONTEXT, record_experts=True)
        self.engine = self.run(start_sglang(self.serving, SECTION, self.log))

    @property
    def client(self):
        return self.engine._client

    def run(self, coroutine):
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 280))

    def close(self):
        self.run(self.engine.close())
        self._loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("run"))
    yield served
    served.close()


def request(name, ids, new=20, temperature=1.0, stop=()):
    return GenerateRequest(name, list(ids), new, temperature, 7, tuple(stop))


def prompt(length, seed=0):
    return torch.randint(0, MODEL.vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


async def running(client, at_least):
    """Wait until the server works on so many requests."""
    while (await client.call("/v1/loads", 10.0))["loads"][0]["num_running_reqs"] < at_least:
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_model_within_and_beyond_its_window(served, temperature):
    lengths = (1, MODEL.sliding_window - 1, MODEL.sliding_window + 2, 300)
    requests = [request(f"t{temperature}-{n}", prompt(n, n), 40, temperature) for n in lengths]
    for asked, answer in zip(requests, served.run(served.engine.generate(requests)), strict=True):
        expected = served.references[0].logprobs(asked.input_ids + answer.token_ids, temperature)[len(asked.input_ids) - 1 :]
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=TOLERANCE, rtol=0)
        assert len(answer.token_ids) == 40
        assert answer.finish_reason == "length"
        assert [(span.version, span.start, span.end) for span in answer.weight_spans] == [(0, 0, 40)]


def test_a_stop_token_ends_the_answer_and_is_part_of_it(served):
    free = served.run(served.engine.generate([request("free", prompt(9), 12, 0.0)]))[0].token_ids
    stop = free[5]
    [answer] = served.run(served.engine.generate([request("stopped", prompt(9), 12, 0.0, [stop])]))
    assert answer.token_ids == free[: free.index(stop) + 1]
    assert answer.finish_reason == "stop"


def test_experts_are_those_of_the_model_and_a_second_turn_tells_the_new_tokens_alone(served):
    [first] = served.run(served.engine.generate([request("talk", prompt(40), 10)]))
    context = prompt(40) + first.token_ids + prompt(6, 1)
    [second] = served.run(served.engine.generate([request("talk", context, 10)]))
    expected = served.references[0].experts(context + second.token_ids)
    assert (first.routed.start, len(first.routed.experts)) == (0, 49)
    assert (second.routed.start, len(second.routed.experts)) == (49, 65 - 49)
    for answer in (first, second):
        told = torch.tensor(answer.routed.experts.astype("int64")).sort(-1).values
        assert torch.equal(told, expected[answer.routed.start : answer.routed.start + len(told)])


def test_requests_that_are_cancelled_make_room_for_others(served):
    async def scenario():
        calls = [asyncio.create_task(served.engine.generate([request(f"long{i}", prompt(5, i), 480)])) for i in range(BATCH)]
        await running(served.client, BATCH)
        short = asyncio.create_task(served.engine.generate([request("short", prompt(5), 2)]))
        for call in calls[1:]:
            call.cancel()
        await short
        still_at_work = not calls[0].done()
        calls[0].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return still_at_work

    assert served.run(scenario())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": [MODEL.vocab_size]}, r"session 'bad': input_ids: .* each in 0\.\.511"),
        ({"max_new_tokens": CONTEXT}, "exceed the engine's max_context of 512"),
    ],
)
def test_what_would_harm_the_server_does_not_reach_it(served, changes, message):
    with pytest.raises(EngineError, match=message):
        served.run(served.engine.generate([replace(request("bad", [1]), **changes)]))


def test_the_whole_context_can_be_used(served):
    [answer] = served.run(served.engine.generate([request("full", prompt(CONTEXT - 3), 3)]))
    assert len(answer.token_ids) == 3


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/generate", {"input_ids": [1]}, ""),
        ("/update_weights_from_disk", {"model_path": "."}, "user"),
        ("/abort_request", {"abort_all": True}, "user"),
        ("/server_info", None, "user"),
    ],
)
def test_keys_are_demanded(served, path, body, key):
    endpoint = served.client.endpoint
    held = Endpoint(endpoint.url, endpoint.key if key else "guess", "guess")

    async def ask(client):
        try:
            await client.call(path, 20.0, body)
        finally:
            await client.close()

    with pytest.raises(EngineError, match="401"):
        served.run(ask(HttpClient(held)))


def test_the_log_that_knows_the_keys_is_nobody_elses(served):
    assert served.log.stat().st_mode & 0o077 == 0


def test_a_damaged_version_is_refused_and_the_old_one_goes_on(served):
    damaged = publish_random(served.layout, 5)
    largest = max(damaged.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size - 8)
    assert (damaged / MANIFEST).is_file()
    with pytest.raises(EngineError, match=largest.name):
        served.run(served.engine.load_weights(damaged, 5))
    [answer] = served.run(served.engine.generate([request("after", prompt(5), 2)]))
    assert answer.weight_spans[0].version == 0


def test_new_weights_take_over_in_the_middle_of_an_answer(served):
    ids = prompt(50)

    async def scenario():
        call = asyncio.create_task(served.engine.generate([request("update", ids, 400)]))
        await running(served.client, 1)
        await served.engine.load_weights(served.weights[1], 1)
        return await call

    [answer] = served.run(scenario())
    old, new = answer.weight_spans
    assert (old.version, old.start, new.version, new.end) == (0, 0, 1, 400)
    assert 0 < old.end == new.start < 400
    told = torch.tensor(answer.logprobs)
    for span, reference in zip((old, new), served.references, strict=True):
        expected = reference.logprobs(ids + answer.token_ids)[len(ids) - 1 :]
        torch.testing.assert_close(told[span.start : span.end], expected[span.start : span.end], atol=TOLERANCE, rtol=0)
    assert answer.routed.start == 0


@pytest.mark.parametrize(
    ("running_requests", "version", "reason", "versions"),
    [("finish", 2, "length", [1]), ("in_place", 3, "length", [2, 3]), ("abort", 4, "abort", [3])],
)
def test_a_recipe_says_what_requests_at_work_go_through(served, running_requests, version, reason, versions):
    """By an engine that is attached to the same server."""
    server = SERVER.model_copy(update={"running": running_requests})
    weights = publish_random(served.layout, version)

    async def scenario():
        serving = replace(served.serving, version=version - 1)
        engine = SGLangEngine(AttachedServer(served.client.endpoint), serving, SECTION.model_copy(update={"server": server}))
        call = asyncio.create_task(engine.generate([request(f"at work {version}", prompt(30), 450)]))
        await running(served.client, 1)
        await engine.load_weights(weights, version)
        [at_work], [later] = await call, await engine.generate([request("later", prompt(30), 2)])
        await engine.close()
        return at_work, later

    at_work, later = served.run(scenario())
    assert at_work.finish_reason == reason
    assert [span.version for span in at_work.weight_spans] == versions
    assert [span.version for span in later.weight_spans] == [version]
    assert len(at_work.token_ids) == len(at_work.logprobs) == at_work.weight_spans[-1].end
    assert (len(at_work.token_ids) == 450) == (reason == "length")


def test_a_server_that_is_killed_takes_its_children_along_and_every_call_says_so(served):
    """From here on, no server."""

    async def scenario():
        pid = served.engine._server.pid
        family = psutil.Process(pid).children(recursive=True)
        lost = asyncio.create_task(served.engine.generate([request("lost", prompt(20), 400)]))
        await running(served.client, 1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineError):
            await lost
        assert not served.engine.alive
        with pytest.raises(EngineError, match=f"SGLang's server {pid} ended with code -9; its log .*engine.log ends with"):
            await served.engine.generate([request("later", prompt(5), 2)])
        return family

    assert psutil.wait_procs(served.run(scenario()), timeout=30)[1] == []
