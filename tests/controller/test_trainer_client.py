import asyncio
from pathlib import Path

import pytest

from gagar_mcore.config.load import load_recipe
from gagar_mcore.controller.trainer_client import TrainerClient
from gagar_mcore.launcher.local import ManagedProcess, ProcessFailed
from gagar_mcore.records.layout import RunLayout


def test_a_trainer_that_does_not_end_is_a_failure_and_not_a_finished_run(tmp_path: Path) -> None:
    recipe = load_recipe("tiny", [f"output={tmp_path}", "trainer.step_timeout_s=0.1"])

    async def finish() -> int | None:
        process = await ManagedProcess.start("trainer", ["sh", "-c", "echo busy; exec sleep 60"], tmp_path / "log", {})
        client = TrainerClient(RunLayout(tmp_path), recipe, 1, _process=process)
        try:
            with pytest.raises(ProcessFailed, match="did not end after its last step"):
                await client.finish()
        finally:
            await client.stop()
        return process.exit_code

    assert asyncio.run(finish()) == -15
