"""Two of SGLang's real servers behind one engine, on this machine's CPU: `make test-sglang`."""

import asyncio
import os
import signal
from functools import partial

import pytest
import torch
from served import MODEL, PYTHON, Reference, needs_sglang, open_run, publish_random

from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.engine.fleet import Fleet
from gagar_mcore.engine.protocol import GenerateRequest
from gagar_mcore.engine.sglang import start_sglang
from gagar_mcore.engine.sglang_flags import Serving

pytestmark = [pytest.mark.timeout(600), *needs_sglang]  # three servers are started; the first of two timeouts counts
BATCH, CONTEXT, PARTS = 4, 512, 8
SERVER = ServerSection(python=str(PYTHON), health_deadline_s=20.0, parts_of=PARTS)
SECTION = EngineSection(kind="sglang", max_batch=BATCH, threads=1, start_timeout_s=240.0, server=SERVER)


def request(name, new=20, ids=range(1, 40)):
    return GenerateRequest(name, list(ids), new, 1.0, 7, ())


def test_an_answer_goes_on_elsewhere_from_its_last_token_and_every_server_has_the_newest_weights(tmp_path):
    """One scenario, since a server takes a minute to start."""
    layout = open_run(tmp_path)
    weights = [publish_random(layout, version) for version in (0, 1)]
    references = [Reference(path) for path in weights]
    started = {"a": [], "b": []}

    async def start(name, directory, version):
        serving = Serving("policy", directory, version, MODEL, CONTEXT, record_experts=True)
        started[name].append(await start_sglang(serving, SECTION, layout.logs / f"{name}.log"))
        return started[name][-1]

    def check(answer, asked, version):
        assert [span.version for span in answer.weight_spans] == [version]
        told = references[version].logprobs(asked.input_ids + answer.token_ids)[len(asked.input_ids) - 1 :]
        torch.testing.assert_close(torch.tensor(answer.logprobs), told, atol=2e-3, rtol=0)
        assert len(answer.token_ids) == asked.max_new_tokens

    async def scenario():
        fleet = Fleet(lambda: {name: partial(start, name) for name in started}, weights[0], 0, BATCH, 240.0)
        await fleet.start()
        try:
            asked = [request("long", 300), request("other", 20)]
            lost = asyncio.create_task(fleet.generate(asked[:1]))
            [other] = await fleet.generate(asked[1:])
            check(other, asked[1], 0)
            [engine] = [members[0] for members in started.values() if members[0]._read.get("other") is None]
            [survivor] = [members[0] for members in started.values() if members[0] is not engine]
            await asyncio.sleep(1.0)
            assert not lost.done()
            os.kill(engine._server.pid, signal.SIGKILL)
            [answer] = await lost
            check(answer, asked[0], 0)
            assert survivor._read["long"] == 39 + 300 - 1
            assert (answer.routed.start, len(answer.routed.experts)) == (0, 39 + 300 - 1)
            expected = references[0].experts(asked[0].input_ids + answer.token_ids)[:-1]
            assert torch.equal(torch.tensor(answer.routed.experts.astype("int64")).sort(-1).values, expected)
            await fleet.load_weights(weights[1], 1)
            while fleet.alive < 2:
                await asyncio.sleep(0.2)
            requests = [request(f"new{i}") for i in range(4)]
            for asked, [answer] in zip(requests, await asyncio.gather(*(fleet.generate([r]) for r in requests)), strict=True):
                check(answer, asked, 1)
            assert all(members[-1]._read for members in started.values())
        finally:
            await fleet.close()

    asyncio.run(asyncio.wait_for(scenario(), 580))
