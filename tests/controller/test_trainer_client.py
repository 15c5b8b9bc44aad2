import asyncio
from pathlib import Path

import pytest

from gagar_mcore.config.load import load_recipe
from gagar_mcore.controller.trainer_client import TrainerClient
from gagar_mcore.launcher.local import ManagedProcess, ProcessFailed
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import publish_json


@pytest.mark.parametrize(
    ("epoch", "applied", "taken"),
    [(2, 1, True), (2, 2, True), (1, 2, False), (2, 0, False)],
    ids=["now", "past", "fenced", "behind"],
)
def test_weights_are_taken_once_the_trainer_of_this_epoch_has_come_to_them(
    tmp_path: Path, epoch: int, applied: int, taken: bool
) -> None:
    layout = RunLayout(tmp_path)
    publish_json(layout.trainer_state, {"applied": applied}, epoch)
    recipe = load_recipe("tiny", [f"output={tmp_path}", "trainer.step_timeout_s=0.1", "trainer.start_timeout_s=0.1"])

    async def take() -> Path:
        process = await ManagedProcess.start("trainer", ["sleep", "60"], tmp_path / "log", {})
        client = TrainerClient(layout, recipe, 2, _process=process)
        try:
            return await client.weights(1)
        finally:
            await client.stop()

    if taken:
        assert asyncio.run(take()) == layout.weights(1)
    else:
        with pytest.raises(ProcessFailed, match="no weights of version 1"):
            asyncio.run(take())


def test_a_trainer_that_makes_its_way_is_waited_for(tmp_path: Path) -> None:
    """Four steps to make up for, each well within the deadline, all of them together beyond it."""
    layout = RunLayout(tmp_path)
    recipe = load_recipe("tiny", [f"output={tmp_path}", "trainer.step_timeout_s=1.5", "trainer.start_timeout_s=0.5"])

    async def catch_up() -> None:
        for step in range(1, 5):
            await asyncio.sleep(0.6)
            publish_json(layout.trainer_state, {"applied": step}, 1)

    async def take() -> Path:
        process = await ManagedProcess.start("trainer", ["sleep", "60"], tmp_path / "log", {})
        client = TrainerClient(layout, recipe, 1, _process=process)
        try:
            weights, _ = await asyncio.gather(client.weights(4), catch_up())
        finally:
            await client.stop()
        return weights

    assert asyncio.run(take()) == layout.weights(4)


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
