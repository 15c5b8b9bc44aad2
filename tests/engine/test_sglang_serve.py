"""`gagar serve` and a run that uses its server: `make test-sglang`."""

import asyncio
import json
import os
import signal
import subprocess
import time

import psutil
import pytest
from served import MODEL, Serve, gagar, needs_sglang, open_run, publish_random

from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.controller.engines import start_engine
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.engine.sglang import attach_sglang
from gagar_mcore.engine.sglang_flags import Serving
from gagar_mcore.records.batch import EXPERT_INDEX
from gagar_mcore.records.expert_index import stored_files
from gagar_mcore.records.layout import RunLayout

pytestmark = [pytest.mark.timeout(420), *needs_sglang]


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    return open_run(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def served(layout):
    """`gagar serve policy tiny`, started again by whoever keeps it: the newest is the last."""
    processes = [serve(layout)]
    try:
        yield processes
    finally:
        for process in processes:
            process.close()


def serve(layout):
    return Serve(layout, "policy", "trainer.routing=replay")


def test_nothing_is_left_of_a_server_that_is_ended_while_it_starts(tmp_path):
    """While its processes do not yet know whom to die with."""
    served = Serve(open_run(tmp_path), "policy")
    while len(family := psutil.Process(served.process.pid).children(recursive=True)) < 4:  # with multiprocessing's own
        assert served.process.poll() is None, served.said.read_text()
        time.sleep(0.02)
    served.close()
    left = psutil.wait_procs(family, timeout=60)[1]
    for process in left:
        process.kill()
    assert left == []


def test_a_run_goes_on_with_a_served_policy_that_dies_and_is_started_again(layout, served, tmp_path):
    """And samples from it what its trainer scores alike."""
    run = RunLayout(tmp_path / "run")
    small = ["rollout.groups_per_step=1", "rollout.group_size=4", "rollout.concurrent_groups=2", "rollout.oversample=8"]
    tasks = ["tasks.count=16", "tasks.heldout_count=0", "train.eval_every=0", "train.steps=2", "train.checkpoint_every=2"]
    engine = ["engine.kind=sglang", f"engine.server.attach={layout.root / 'servers'}", "trainer.routing=replay"]
    engine += ["engine.server.update=distributed", "engine.server.health_deadline_s=10", "engine.start_timeout_s=240"]
    served[0].wait()
    with open(tmp_path / "said", "w") as out:
        command = gagar("train", "tiny", f"output={run.root}", "tracking.wandb=off", *engine, *small, *tasks)
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        while len(trained(run)) < 1:
            assert process.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.1)
        os.kill(server_of(served[0]), signal.SIGKILL)
        assert served[0].process.wait(60) == 1 and "ended with code -9" in served[0].said.read_text()
        assert not layout.server("policy").exists() and len(trained(run)) == 1
        served.append(serve(layout).wait())
        assert process.wait(200) == 0, (tmp_path / "said").read_text()
    finally:
        process.kill()
        process.wait()
    not_sent = [line for line in (tmp_path / "said").read_text().splitlines() if "reads all of it" in line]
    assert len(not_sent) == 1 and str(run.weights(0)) in not_sent[0]  # when the trainer was not there yet
    files = [stored_files(run.batch(step) / EXPERT_INDEX) for step in (1, 2)]
    assert not any((run.batch(step) / "experts.bin").exists() for step in (1, 2))  # nothing was copied
    assert all(file.is_relative_to(layout.root / "experts") for stored in files for file in stored)
    assert files[0] and {file.parent for file in files[0]} != {file.parent for file in files[1]}  # of the second server
    assert len(trained(run)) == 2
    for step in trained(run):
        assert step["train/rollout_logprob_max_diff"] < 2e-3 and step["train/router_agreement"] == 1


def trained(run):
    """What the run has logged of its steps."""
    lines = run.metrics.read_text().splitlines(keepends=True) if run.metrics.exists() else []
    steps = [json.loads(line) for line in lines if line.endswith("\n")]
    return [step for step in steps if "train/rollout_logprob_max_diff" in step]


def server_of(served):
    [launched] = psutil.Process(served.process.pid).children()
    return launched.pid


async def version_of(engine):
    [answer] = await engine.generate([GenerateRequest("s", [1, 2, 3], 4, 1.0, 7, ())])
    return answer.weight_spans[0].version


def test_a_served_policy_is_brought_up_to_date_by_what_runs_beside_it_and_given_up_when_silent(layout, served, caplog):
    weights = publish_random(layout, 3)
    server = ServerSection(attach=str(layout.server("policy")), health_deadline_s=15.0, update="delta")
    section = EngineSection(kind="sglang", server=server, deadline_s=60.0)

    async def use(pid):
        engine = await attach_sglang(layout.server("policy"), Serving("policy", weights, 3, MODEL, 500), section)
        assert await version_of(engine) == 3
        assert "copied whole" not in caplog.text and "reads all of it" not in caplog.text  # it came by `gagar serve`
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(EngineError, match=r"http://127.0.0.1:\d+ gave no sign of health within 15 s"):
                await version_of(engine)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert not engine.alive
        await engine.close()

    assert layout.server("policy").stat().st_mode & 0o077 == 0
    asyncio.run(asyncio.wait_for(use(server_of(served[-1])), 120))


def test_a_served_policy_is_stopped_by_a_signal_and_waited_for_no_longer_than_may_be(layout, served):
    """From here on, no server."""
    attached = [f"output={layout.root}", "engine.kind=sglang", f"engine.server.attach={layout.root / 'servers'}"]
    recipe = load_recipe("tiny", [*attached, "engine.start_timeout_s=15", "engine.server.health_deadline_s=5"])
    process = served[-1].process
    family = psutil.Process(process.pid).children(recursive=True)

    async def use():
        fleet = await start_engine(recipe, layout.logs / "engine.log", publish_random(layout, 4), 4)
        try:
            assert await version_of(fleet) == 4
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0
            waiting = version_of(fleet), fleet.load_weights(publish_random(layout, 5), 5)
            given_up = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(error, EngineError) and "no engine within 15 s" in str(error) for error in given_up)
        finally:
            await fleet.close()

    asyncio.run(asyncio.wait_for(use(), 180))
    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert not layout.server("policy").exists()
