import asyncio
from pathlib import Path

import pytest

from gagar_mcore.config.load import load_recipe
from gagar_mcore.controller.trainer_client import TrainerClient
from gagar_mcore.launcher.local import ManagedProcess, ProcessFailed
from gagar_mcore.records.epochs import open_epoch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import publish_directory


def test_weights_that_a_fenced_trainer_published_after_the_takeover_are_not_taken(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for version in (1, 2):
        open_epoch(layout, next_step=version, next_version=version)
        publish_directory(layout.weights(version), "weights", 1, lambda directory: {"size": (directory / "file").write_text("x")})
    recipe = load_recipe("tiny", [f"output={tmp_path}", "trainer.step_timeout_s=0.1", "trainer.start_timeout_s=0.1"])

    async def take(version: int) -> Path:
        process = await ManagedProcess.start("trainer", ["sleep", "60"], tmp_path / "log", {})
        client = TrainerClient(layout, recipe, 2, _process=process)
        try:
            return await client.weights(version)
        finally:
            await client.stop()

    assert asyncio.run(take(1)) == layout.weights(1)
    with pytest.raises(ProcessFailed, match="no weights of version 2"):
        asyncio.run(take(2))


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
