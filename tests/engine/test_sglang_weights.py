"""New weights on SGLang's real server, in every mode that a recipe can name: `make test-sglang`."""

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from served import MODEL, PYTHON, Reference, needs_sglang, open_run, publish_random

from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.engine import update
from gagar_mcore.engine.attach import AttachedServer
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.engine.server import start_server
from gagar_mcore.engine.sglang import SGLangEngine
from gagar_mcore.engine.sglang_flags import Serving
from gagar_mcore.records.store import publish_directory
from gagar_mcore.weights import sender
from gagar_mcore.weights.deltas import KIND, delta_meta, delta_of, write_delta
from gagar_mcore.weights.tensor import SharedMemory

pytestmark = needs_sglang
SERVER = ServerSection(python=str(PYTHON), health_deadline_s=20.0)
SECTION = EngineSection(kind="sglang", max_batch=4, threads=1, start_timeout_s=240.0, server=SERVER)
TOLERANCE = 2e-3
SMALL = 300_000  # bytes of a bucket: several, of which one is a single large tensor


class Served:
    """A server, and the run whose weights it is brought to, on a loop that outlives each test."""

    def __init__(self, directory):
        self.layout, self.version = open_run(directory), 0
        self._loop = asyncio.new_event_loop()
        self.serving = Serving("policy", publish_random(self.layout, 0), 0, MODEL, 512)
        self.server = self.run(start_server(self.serving, SECTION, self.layout.logs / "engine.log"))

    def publish(self):
        """The next version, and what it changes in the one before."""
        base, self.version = self.layout.weights(self.version), self.version + 1
        target = publish_random(self.layout, self.version)
        delta_of(target).parent.mkdir(exist_ok=True)
        fill = lambda directory: write_delta(base, target, directory) and delta_meta(base, target)  # noqa: E731
        publish_directory(delta_of(target), KIND, 1, fill)
        return target

    @contextmanager
    def engine(self, **server):
        """On the same server, told otherwise how weights come."""
        section = SECTION.model_copy(update={"server": SERVER.model_copy(update=server), "start_timeout_s": 30.0})

        async def begin():
            return SGLangEngine(AttachedServer(self.server.endpoint), replace(self.serving, version=self.version), section)

        engine = self.run(begin())
        if hasattr(engine._updater._transport, "_bucket_bytes"):
            engine._updater._transport._bucket_bytes = SMALL
        try:
            yield engine
        finally:
            self.run(engine.close())

    def run(self, coroutine):
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 280))

    def close(self):
        self.run(self.server.close())
        self._loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("run"))
    with sender.sending(served.layout.root):
        yield served
    served.close()


def request(name, length, new=8, seed=5):
    ids = torch.randint(0, MODEL.vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return GenerateRequest(name, ids, new, 1.0, 7, ())


async def holds(engine, weights, version, seed=5):
    """Whether the server samples by these weights, in a context that it has read with older ones, too, where that is of the same
    seed."""
    asked = request(f"context {version}", 60, seed=seed)
    [answer] = await engine.generate([asked])
    ids = asked.input_ids
    expected = Reference(weights).logprobs(ids + answer.token_ids)[len(ids) - 1 :]
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=TOLERANCE, rtol=0)
    assert [span.version for span in answer.weight_spans] == [version]


async def at_work(engine, name):
    call = asyncio.create_task(engine.generate([request(name, 30, new=150, seed=len(name))]))
    while (await engine._client.call("/v1/loads", 10.0))["loads"][0]["num_running_reqs"] < 1:
        await asyncio.sleep(0.05)
    return call


@pytest.mark.parametrize("mode", ["disk", "tensor", "distributed", "delta"])
def test_a_server_takes_version_after_version(served, mode, caplog):
    with served.engine(update=mode) as engine:
        for step in range(2):
            caplog.clear()
            weights = served.publish()
            served.run(engine.load_weights(weights, served.version))
            served.run(holds(engine, weights, served.version))
            first_copy = mode == "delta" and step == 0
            assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO and not first_copy] == []


@pytest.mark.parametrize(
    ("mode", "running", "reason", "versions"),
    [
        ("tensor", "retract", "length", 2),
        ("tensor", "abort", "abort", 1),
        ("distributed", "in_place", "length", 2),
        ("delta", "retract", "length", 2),
        ("delta", "finish", "length", 1),
    ],
)
def test_requests_at_work_go_through_what_the_recipe_says(served, mode, running, reason, versions):
    before, weights = served.version, served.publish()

    async def scenario(engine):
        call = await at_work(engine, f"{mode} {running}")
        await engine.load_weights(weights, served.version)
        [answer] = await call
        await holds(engine, weights, served.version, seed=served.version)  # in place, caches are kept
        return answer

    with served.engine(update=mode, running=running) as engine:
        answer = served.run(scenario(engine))
    new = [served.version] if running == "finish" else [before, served.version][:versions]
    assert answer.finish_reason == reason
    assert [span.version for span in answer.weight_spans] == ([before] if running == "finish" else new)


class OtherWeights(SharedMemory):
    """Sends an older version as the one that is asked for: a transport that has gone wrong."""

    def __init__(self, weights):
        super().__init__(1)
        self._weights = weights

    async def bring(self, order, update):
        await super().bring(order, replace(update, weights=self._weights))


def test_a_server_that_holds_other_values_reads_all_of_it(served, caplog):
    other, weights = served.layout.weights(served.version), served.publish()
    with served.engine(update="tensor") as engine:
        engine._updater._transport = OtherWeights(other)
        served.run(engine.load_weights(weights, served.version))
        served.run(holds(engine, weights, served.version))
    assert "the server holds other values" in caplog.text and "w13_weight" in caplog.text


def test_one_that_holds_other_values_again_is_given_up(served, monkeypatch):
    other, weights = served.layout.weights(served.version), served.publish()
    monkeypatch.setattr(update, "Anew", lambda: OtherWeights(other))
    with served.engine(update="tensor") as engine:
        engine._updater._transport = OtherWeights(other)
        with pytest.raises(EngineError, match=r"the server holds other values than .* of model"):
            served.run(engine.load_weights(weights, served.version))
        assert not engine.alive


def test_a_sender_that_is_lost_in_the_middle_leaves_the_server_with_all_of_it(served, monkeypatch, caplog):
    class Lost(sender.Sending):
        sent = 0

        def broadcast(self, tensor):
            self.sent += 1
            if self.sent > 1:
                raise RuntimeError("lost")
            super().broadcast(tensor)

    monkeypatch.setattr(sender, "Sending", Lost)
    weights = served.publish()
    with served.engine(update="distributed") as engine:
        served.run(engine.load_weights(weights, served.version))
        served.run(holds(engine, weights, served.version))
        assert engine.alive
    assert "now the server reads all of it" in caplog.text


def test_a_session_that_a_killed_controller_left_open_is_ended(served, caplog):
    with served.engine(update="tensor") as engine:
        served.run(engine._order("/begin_weight_update", {}))
        for left_open in (True, False):
            caplog.clear()
            weights = served.publish()
            served.run(engine.load_weights(weights, served.version))
            served.run(holds(engine, weights, served.version))
            assert ("already open" in caplog.text) == left_open
