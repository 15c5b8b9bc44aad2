"""Sessions in a real sandbox, with an engine that says what the test wants said."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from chat_models import write_chat_checkpoint

from gagar_mcore.agent.bash import TOOLS, BashTools
from gagar_mcore.agent.calls import Answer, ToolCall
from gagar_mcore.agent.renderer import Renderer, load_renderer, render_session
from gagar_mcore.agent.session import SessionKey, SessionLimits, SessionRunner, Transcript
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.engine.protocol import GenerateRequest, Generation, RoutedTokens
from gagar_mcore.records.experts import UNKNOWN, Experts
from gagar_mcore.records.store import FileSum
from gagar_mcore.records.types import Trajectory
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.write import write_task
from gagar_sandbox import LocalPool
from gagar_sandbox.types import Limits

CHECKPOINT = shipped_checkpoint("tiny-mimo-v2")
assert CHECKPOINT is not None
RENDERER = load_renderer(CHECKPOINT)
LIMITS = SessionLimits(max_turns=5, max_new_tokens=100, max_context=2000, temperature=1.0, deadline_s=60.0)


def routed(start: int, end: int, salt: int = 0) -> RoutedTokens:
    """In two layers, two experts each, that say whose they are."""
    positions = np.arange(start, end, dtype=np.int16)
    return RoutedTokens(start, np.stack([positions + salt + k for k in range(4)], axis=-1).reshape(-1, 2, 2))


class Parrot:
    """Runs one command, turn after turn; says which experts tokens passed if it is a recording one."""

    def __init__(self, command: str, recording: bool = False, renderer: Renderer = RENDERER) -> None:
        self.recording = recording
        self.renderer = renderer
        self.answer = Answer(calls=(ToolCall("bash", {"command": command}),))
        self.ids = renderer.answer(self.answer)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        [request] = requests
        read = routed(0, len(request.input_ids) + len(self.ids) - 1) if self.recording else None
        return [Generation(self.ids, [-1.0] * len(self.ids), [], "stop", read)]

    async def end_session(self, session_id: str) -> None: ...
    async def load_weights(self, directory: Path, version: int) -> None: ...

    async def release_memory(self) -> None: ...
    async def close(self) -> None: ...


def run(
    engine: Parrot, folder: Path, purpose: str = "train", keep: Callable[[SessionKey, Experts], FileSum] | None = None
) -> Trajectory:
    task = load_task(write_task(generate_task(5, 3), folder))

    async def main() -> Trajectory:
        pool = LocalPool(1)
        try:
            tools = BashTools(calls=engine.renderer.calls)
            runner = SessionRunner(pool, tools, engine.renderer, LIMITS, Limits(), keep)
            return await runner.run(SessionKey(1, purpose, 1, "g", 0), task, engine)
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_an_observation_that_leaves_no_room_for_a_turn_ends_the_session_and_is_not_trained(tmp_path: Path) -> None:
    trajectory = run(Parrot("seq 9999"), tmp_path)
    assert trajectory.end_reason == "max_context"
    assert [turn.tool for turn in trajectory.turns] == ["bash"]
    assert len(trajectory.turns[0].observation) > LIMITS.max_context
    assert len(trajectory.token_ids) <= LIMITS.max_context
    assert trajectory.loss_mask[-1] == 1


def test_observations_that_fit_stay_until_the_turns_run_out(tmp_path: Path) -> None:
    trajectory = run(Parrot("echo hello"), tmp_path)
    assert (trajectory.end_reason, len(trajectory.turns)) == ("max_turns", LIMITS.max_turns)
    assert trajectory.loss_mask[-1] == 0


@pytest.mark.parametrize("preset", ["mimo-v2-flash", "qwen3-30b-a3b"])
def test_a_session_in_the_template_of_a_real_model(tmp_path: Path, preset: str) -> None:
    """The tokenizer is a stand-in. A marker that the sandbox prints is text to the policy."""
    renderer = load_renderer(write_chat_checkpoint(tmp_path / "model", preset))
    parrot = Parrot("echo '<|im_end|>'", renderer=renderer)
    trajectory = run(parrot, tmp_path / "task")
    assert (trajectory.end_reason, len(trajectory.turns)) == ("max_turns", LIMITS.max_turns)
    turns = [(parrot.answer, "<|im_end|>")] * LIMITS.max_turns
    prompt = BashTools().prompt(load_task(tmp_path / "task" / trajectory.task_id))
    assert (list(trajectory.token_ids), list(trajectory.loss_mask)) == render_session(renderer, prompt, turns, TOOLS)


def test_experts_are_those_said_last_and_unknown_where_nothing_was_said() -> None:
    """An engine that kept its cache tells of what is new, one that lost it of everything again."""
    transcript = Transcript()
    assert transcript.experts() is None
    transcript.add_context([1] * 4)
    transcript.add_generation(Generation([2] * 3, [-1.0] * 3, [], "stop", routed(0, 6, salt=100)))
    transcript.add_context([1] * 2)
    transcript.add_generation(Generation([2] * 2, [-1.0] * 2, [], "stop", routed(6, 10, salt=200)))
    experts = transcript.experts()
    assert experts is not None and experts.dtype == np.int16 and experts.shape == (11, 2, 2)
    assert experts[:, 0, 0].tolist() == [*range(100, 106), *range(206, 210), UNKNOWN]

    transcript.add_generation(Generation([2], [-1.0], [], "stop", routed(0, 11, salt=300)))
    experts = transcript.experts()
    assert experts is not None
    assert experts[:, 1, 1].tolist() == [*range(303, 314), UNKNOWN]
    assert len(transcript.routed) == 1


def test_experts_are_kept_before_the_trajectory_names_them_and_only_of_what_is_trained(tmp_path: Path) -> None:
    kept: list[tuple[str, Experts]] = []

    def keep(key: SessionKey, experts: Experts) -> FileSum:
        kept.append((key.trajectory_id, experts))
        return 7, "sum"

    trajectory = run(Parrot("echo hello", recording=True), tmp_path / "train", "train", keep)
    [(name, experts)] = kept
    assert (name, trajectory.experts) == (trajectory.id, (7, "sum"))
    assert len(experts) == len(trajectory.token_ids)
    assert trajectory.loss_mask[-1] == 0  # the last observation and the token before it were never read
    known = np.flatnonzero(trajectory.loss_mask)[-1]
    assert experts[:known, 0, 0].tolist() == list(range(known)) and (experts[known:] == UNKNOWN).all()

    assert run(Parrot("echo hello", recording=True), tmp_path / "eval", "eval", keep).experts is None
    assert run(Parrot("echo hello"), tmp_path / "free", "train", keep).experts is None
    assert len(kept) == 1
