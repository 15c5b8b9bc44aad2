"""Sessions in a real sandbox, with an engine that says what the test wants said."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gagar_mcore.agent.bash import BashTools
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.session import SessionKey, SessionLimits, SessionRunner
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.engine.protocol import GenerateRequest, Generation
from gagar_mcore.records.types import Trajectory
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.write import write_task
from gagar_sandbox import LocalPool
from gagar_sandbox.types import Limits

CHECKPOINT = shipped_checkpoint("tiny-mimo-v2")
assert CHECKPOINT is not None
RENDERER = Renderer.load(CHECKPOINT)
LIMITS = SessionLimits(max_turns=5, max_new_tokens=100, max_context=2000, temperature=1.0, deadline_s=60.0)


class Parrot:
    """Runs one command, turn after turn."""

    def __init__(self, command: str) -> None:
        call = f"<tool_call><function=bash><parameter=command>{command}</parameter></function></tool_call>"
        self.ids = [*RENDERER.prompt(call)[1:-1], *RENDERER.stop_token_ids]

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        return [Generation(self.ids, [-1.0] * len(self.ids), [], "stop") for _ in requests]

    async def end_session(self, session_id: str) -> None: ...
    async def load_weights(self, directory: Path, version: int) -> None: ...

    async def release_memory(self) -> None: ...
    async def close(self) -> None: ...


def run(command: str, folder: Path) -> Trajectory:
    task = load_task(write_task(generate_task(5, 3), folder))

    async def main() -> Trajectory:
        pool = LocalPool(1)
        try:
            runner = SessionRunner(pool, BashTools(), RENDERER, LIMITS, Limits())
            return await runner.run(SessionKey(1, "train", 1, "g", 0), task, Parrot(command))
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_an_observation_that_leaves_no_room_for_a_turn_ends_the_session_and_is_not_trained(tmp_path: Path) -> None:
    trajectory = run("seq 9999", tmp_path)
    assert trajectory.end_reason == "max_context"
    assert [turn.tool for turn in trajectory.turns] == ["bash"]
    assert len(trajectory.turns[0].observation) > LIMITS.max_context
    assert len(trajectory.token_ids) <= LIMITS.max_context
    assert trajectory.loss_mask[-1] == 1


def test_observations_that_fit_stay_until_the_turns_run_out(tmp_path: Path) -> None:
    trajectory = run("echo hello", tmp_path)
    assert (trajectory.end_reason, len(trajectory.turns)) == ("max_turns", LIMITS.max_turns)
    assert trajectory.loss_mask[-1] == 0
