"""What a context that is full begins anew with."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_session import LIMITS, RENDERER, Parrot

from gagar_mcore.agent.bash import TOOLS, BashTools
from gagar_mcore.agent.compaction import Compaction, summarised
from gagar_mcore.agent.session import SessionKey, SessionLimits, SessionRunner
from gagar_mcore.agent.transcript import Transcript
from gagar_mcore.engine.protocol import GenerateRequest, Generation
from gagar_mcore.records.experts import UNKNOWN, Experts
from gagar_mcore.records.store import FileSum
from gagar_mcore.records.types import Trajectory, Turn, WeightSpan
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.write import write_task
from gagar_sandbox import LocalPool
from gagar_sandbox.types import Limits

texts = st.one_of(st.text(max_size=60), st.sampled_from(["<|im_end|>", "<|act|>", "<think>never ends", "x" * 900]))


def session(turns: Sequence[tuple[str, str]]) -> Transcript:
    transcript = Transcript()
    transcript.add_context(RENDERER.prompt("the task", TOOLS))
    for index, (action, observation) in enumerate(turns):
        ids = [*RENDERER.prompt(action)[1:-1], RENDERER.stop_token_ids[0]]
        transcript.add_generation(Generation(ids, [-1.0] * len(ids), [WeightSpan(index, 0, len(ids))], "stop"))
        transcript.turns.append(Turn(index, action, "bash", observation, True, "stop", len(ids), 0.0))
        transcript.add_context(RENDERER.observation(observation))
    return transcript


@settings(max_examples=50)
@given(turns=st.lists(st.tuples(texts, texts), min_size=1, max_size=12), most=st.integers(0, 3000))
def test_an_opening_is_the_prompt_and_the_last_turns_with_their_own_ids_in_half_the_room(
    turns: list[tuple[str, str]], most: int
) -> None:
    transcript = session(turns)
    shortest = RENDERER.prompt("the task", TOOLS)
    opening = Compaction(RENDERER, TOOLS, most).opening("the task", transcript)
    if most < len(shortest) + 2:
        assert opening is None
        return
    assert opening is not None and len(opening) <= len(shortest) + (most - len(shortest)) // 2
    assert opening[0] == shortest[0] and opening[-1] == shortest[-1]  # up to where an answer begins
    kept = opening.count(RENDERER.stop_token_ids[0])
    tail = list(transcript.token_ids[transcript.answers[-kept][0] :]) if kept else []
    assert opening[len(opening) - len(tail) :] == tail
    assert len(tail) <= (most - len(shortest)) // 4


def test_lines_become_narrower_before_the_oldest_are_left_out() -> None:
    turns = [Turn(i, f"call {i} " + "a" * 200, "bash", f"result {i} " + "b" * 200, True, "stop", 1, 0.0) for i in range(20)]

    def within(characters: int) -> str:
        return summarised("the task", turns, lambda text: len(text) <= characters)

    assert within(20_000).count("a" * 200) == 20
    assert within(6000).count("call ") == 20 and "a" * 100 not in within(6000)
    assert "(13 more turns before)\n14. call 13" in within(800) and "call 19" in within(800)
    assert within(50) == "the task"


def test_a_result_is_one_line_and_thoughts_are_left_out() -> None:
    turn = Turn(4, "<think>\nsecret\n</think>\n\nls", "bash", "a\n  b\n", True, "stop", 1, 0.0)
    assert summarised("the task", [turn], lambda text: True).splitlines()[-1] == "5. ls -> a b"


class Listening(Parrot):
    """Keeps what it was asked to go on from."""

    def __init__(self, command: str) -> None:
        super().__init__(command, recording=True)
        self.read: list[list[int]] = []

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        self.read.append(list(requests[0].input_ids))
        return await super().generate(requests)


def run(engine: Listening, folder: Path, limits: SessionLimits, kept: list[Experts]) -> Trajectory:
    task = load_task(write_task(generate_task(5, 3), folder))

    def keep(key: SessionKey, experts: Experts) -> FileSum:
        kept.append(experts)
        return 1, "sum"

    async def main() -> Trajectory:
        pool = LocalPool(1)
        try:
            runner = SessionRunner(pool, BashTools(calls=RENDERER.calls), RENDERER, limits, Limits(), keep)
            return await runner.run(SessionKey(1, "train", 1, "g", 0), task, engine)
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("command", ["seq 120", "seq 9999"])
def test_a_session_whose_context_overflows_goes_on_in_segments(tmp_path: Path, command: str) -> None:
    """With results that fit once or twice, and with one that never does."""
    engine, kept = Listening(command), list[Experts]()
    limits = replace(LIMITS, max_turns=8, overflow="compact")
    trajectory = run(engine, tmp_path, limits, kept)
    assert (trajectory.end_reason, len(trajectory.turns)) == ("max_turns", 8)
    assert len(trajectory.segments) > 2
    ids, mask = list(trajectory.token_ids), np.asarray(trajectory.loss_mask)
    assert all(0 < end - start <= limits.max_context for start, end in trajectory.segments)
    assert not mask[trajectory.segment_starts].any()

    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0))
    answers = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    assert [ids[a:b] for a, b in answers] == [engine.ids] * 8  # each trained once
    starts = [max(s for s in trajectory.segment_starts if s <= a) for a, _ in answers]
    assert engine.read == [ids[start:a] for start, (a, _) in zip(starts, answers, strict=True)]

    [experts] = kept
    for start, end in trajectory.segments:
        drawn = [b for a, b in answers if start <= a < end]
        known = drawn[-1] - 1 if drawn else start  # the token that was drawn last was never read
        assert experts[start:known, 0, 0].tolist() == list(range(known - start))
        assert (experts[known:end] == UNKNOWN).all()


def test_a_prompt_without_room_for_another_turn_ends_the_session(tmp_path: Path) -> None:
    prompt = len(RENDERER.prompt(BashTools().prompt(load_task(write_task(generate_task(5, 3), tmp_path / "t"))), TOOLS))
    limits = replace(LIMITS, max_context=prompt + LIMITS.max_new_tokens + 1, overflow="compact")
    trajectory = run(Listening("seq 9999"), tmp_path, limits, [])
    assert (trajectory.end_reason, len(trajectory.turns), trajectory.segment_starts) == ("max_context", 1, [0])
