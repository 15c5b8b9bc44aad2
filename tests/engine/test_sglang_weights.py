"""New weights on SGLang's real server, in every mode that a recipe can name: `make test-sglang`."""

import asyncio
import json
import logging
import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from served import MODEL, PYTHON, Reference, needs_sglang, open_run, publish_random

from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.engine import update
from gagar_mcore.engine.attach import AttachedServer, write_address
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.engine.server import start_server
from gagar_mcore.engine.sglang import SGLangEngine, attach_sglang
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
        self.layout, self.version, self.held = open_run(directory), 0, 0
        self._loop = asyncio.new_event_loop()
        self.ran = directory / "code of a checkpoint ran"
        self.serving = Serving("policy", with_code(publish_random(self.layout, 0), directory / "first", self.ran), 0, MODEL, 512)
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
            return SGLangEngine(AttachedServer(self.server.endpoint), replace(self.serving, version=self.held), section)

        engine = self.run(begin())
        if hasattr(engine._updater._transport, "_bucket_bytes"):
            engine._updater._transport._bucket_bytes = SMALL
        try:
            yield engine
        finally:
            self.run(engine.close())
            self.held = self.version

    def run(self, coroutine):
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 280))

    def close(self):
        self.run(self.server.close())
        self._loop.close()


def with_code(weights, directory, mark):
    """The same weights, with a configuration that wants code of its own to be run, which leaves a mark."""
    shutil.copytree(weights, directory)
    config = json.loads((directory / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own_code.Own", "AutoModelForCausalLM": "own_code.Own"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "own_code.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: ...\n")
    return directory


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


def test_a_server_that_a_killed_run_left_paused_in_the_middle_is_taken_over(served, tmp_path):
    """Paused, it gives no sign of health."""

    async def left_paused(engine):
        await engine._order("/pause_generation", {"mode": "retract"})
        await engine._order("/begin_weight_update", {})

    async def take_over(weights):
        section = SECTION.model_copy(update={"start_timeout_s": 60.0})
        serving = replace(served.serving, weights=weights, version=served.version)
        with write_address(tmp_path / "policy.json", served.server.endpoint):
            engine = await attach_sglang(tmp_path / "policy.json", serving, section)
            try:
                await holds(engine, weights, served.version)
            finally:
                await engine.close()

    with served.engine() as engine:
        served.run(left_paused(engine))
    served.run(take_over(served.publish()))
    served.held = served.version


def test_caches_are_dropped_once_nothing_is_at_work(served):
    """As before memory is given back, which ends a server that has anything to do."""

    async def scenario(engine):
        call = await at_work(engine, "last")
        await engine._order("/flush_cache?timeout=60", {}, 90.0)
        return (await asyncio.wait_for(call, 5.0))[0]

    with served.engine() as engine:
        assert len(served.run(scenario(engine)).token_ids) == 150


def test_pickled_weights_are_not_read_and_no_code_of_a_checkpoint_has_run(served, tmp_path):
    class Own:
        def __reduce__(self):
            return open, (str(served.ran), "w")

    (tmp_path / "config.json").write_bytes((served.layout.weights(0) / "config.json").read_bytes())
    torch.save({"model.norm.weight": Own()}, tmp_path / "pytorch_model.bin")
    with served.engine() as engine:
        with pytest.raises(EngineError, match="/update_weights_from_disk: 400"):
            served.run(engine.load_weights(tmp_path, served.version))
        assert not engine.alive
    assert not served.ran.exists()
