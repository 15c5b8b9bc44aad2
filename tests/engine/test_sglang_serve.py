"""`gagar serve` and an engine that uses its server: `make test-sglang`."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest
from served import MODEL, PYTHON, needs_sglang, open_run, publish_random

from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.engine.sglang import start_sglang
from gagar_mcore.engine.sglang_flags import Serving

pytestmark = needs_sglang


@contextmanager
def serving(layout):
    """`gagar serve policy tiny` at work, and the file that it has written."""
    overrides = [f"output={layout.root}", "engine.kind=sglang", "engine.max_batch=4", "engine.start_timeout_s=240"]
    overrides.append(f"engine.server.python={PYTHON}")
    with open(layout.root / "serve.txt", "w") as out:
        command = [sys.executable, "-m", "gagar_mcore.cli", "serve", "policy", "tiny", *overrides]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 240
        while not layout.server("policy").is_file():
            assert process.poll() is None and time.monotonic() < deadline, (layout.root / "serve.txt").read_text()
            time.sleep(0.5)
        yield process
    finally:
        process.kill()
        process.wait()


async def version_of(engine):
    [answer] = await engine.generate([GenerateRequest("s", [1, 2, 3], 4, 1.0, 7, ())])
    return answer.weight_spans[0].version


def test_a_served_policy_is_attached_brought_up_to_date_given_up_when_silent_and_stopped_by_a_signal(tmp_path):
    layout = open_run(tmp_path / "run")
    weights = publish_random(layout, 3)
    server = ServerSection(attach=str(layout.server("policy")), health_deadline_s=15.0)
    section = EngineSection(kind="sglang", server=server, deadline_s=60.0)

    async def use(pid):
        engine = await start_sglang(Serving("policy", weights, 3, MODEL, 500), section, tmp_path / "unused.log")
        assert await version_of(engine) == 3
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"http://127.0.0.1:\d+ gave no sign of health within 15 s"):
            await version_of(engine)
        assert not engine.alive
        await engine.close()
        os.kill(pid, signal.SIGCONT)

    with serving(layout) as process:
        assert layout.server("policy").stat().st_mode & 0o077 == 0
        family = psutil.Process(process.pid).children(recursive=True)
        [launched] = psutil.Process(process.pid).children()
        asyncio.run(asyncio.wait_for(use(launched.pid), 120))
        process.terminate()
        assert process.wait(60) == 0
        assert psutil.wait_procs(family, timeout=30)[1] == []
    assert not layout.server("policy").exists()
