"""`gagar serve` and an engine that uses its server: `make test-sglang`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from served import MODEL, PYTHON, needs_sglang, open_run, publish_random

from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.engine.sglang import attach_sglang
from gagar_mcore.engine.sglang_flags import Serving
from gagar_mcore.records.batch import EXPERT_INDEX
from gagar_mcore.records.expert_index import stored_files
from gagar_mcore.records.layout import RunLayout

pytestmark = needs_sglang


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    return open_run(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def process(layout):
    """`gagar serve policy tiny` at work."""
    overrides = [
        f"output={layout.root}",
        f"engine.server.python={PYTHON}",
        "engine.start_timeout_s=240",
        "trainer.routing=replay",
    ]
    said = layout.root / "serve.txt"
    with open(said, "w") as out:
        command = gagar("serve", "policy", "tiny", "engine.kind=sglang", "engine.max_batch=8", *overrides)
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 240
        while not layout.server("policy").is_file():
            assert process.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.5)
        yield process
    finally:
        process.kill()
        process.wait()


def gagar(*words):
    return [sys.executable, "-m", "gagar_mcore.cli", *words]


def test_a_run_samples_from_the_served_policy_what_its_trainer_scores_alike(layout, process, tmp_path):
    run = RunLayout(tmp_path / "run")
    small = ["rollout.groups_per_step=1", "rollout.group_size=4", "rollout.concurrent_groups=2", "rollout.oversample=8"]
    tasks = ["tasks.count=16", "tasks.heldout_count=0", "train.eval_every=0", "train.steps=2", "train.checkpoint_every=2"]
    engine = ["engine.kind=sglang", f"engine.server.attach={layout.server('policy')}", "trainer.routing=replay"]
    engine += ["engine.server.update=distributed"]
    command = gagar("train", "tiny", f"output={run.root}", "tracking.wandb=off", *engine, *small, *tasks)
    said = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert said.returncode == 0, said.stderr
    not_sent = [line for line in said.stderr.splitlines() if "reads all of it" in line]
    assert len(not_sent) == 1 and str(run.weights(0)) in not_sent[0]  # when the trainer was not there yet
    steps = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    trained = [step for step in steps if "train/rollout_logprob_max_diff" in step]
    assert len(trained) == 2
    for step in (1, 2):
        batch, index = run.batch(step), run.batch(step) / EXPERT_INDEX
        assert not (batch / "experts.bin").exists()  # nothing was copied
        assert stored_files(index) and all(file.is_relative_to(layout.root / "experts") for file in stored_files(index))
    assert all(step["train/rollout_logprob_max_diff"] < 2e-3 and step["train/router_agreement"] == 1 for step in trained)


async def version_of(engine):
    [answer] = await engine.generate([GenerateRequest("s", [1, 2, 3], 4, 1.0, 7, ())])
    return answer.weight_spans[0].version


def test_a_served_policy_is_brought_up_to_date_given_up_when_silent_and_stopped_by_a_signal(layout, process, caplog):
    """By the receiver beside it. From here on, no server."""
    weights = publish_random(layout, 3)
    server = ServerSection(attach=str(layout.server("policy")), health_deadline_s=15.0, update="delta")
    section = EngineSection(kind="sglang", server=server, deadline_s=60.0)

    async def use(pid):
        engine = await attach_sglang(layout.server("policy"), Serving("policy", weights, 3, MODEL, 500), section)
        assert await version_of(engine) == 3
        assert "copied whole" not in caplog.text and "reads all of it" not in caplog.text  # it came by `gagar serve`
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"http://127.0.0.1:\d+ gave no sign of health within 15 s"):
            await version_of(engine)
        assert not engine.alive
        await engine.close()
        os.kill(pid, signal.SIGCONT)

    assert layout.server("policy").stat().st_mode & 0o077 == 0
    family = psutil.Process(process.pid).children(recursive=True)
    [launched] = psutil.Process(process.pid).children()
    asyncio.run(asyncio.wait_for(use(launched.pid), 120))
    process.terminate()
    assert process.wait(60) == 0
    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert not layout.server("policy").exists()
