"""Temperature and limits of a source's sessions are its own. The engine is a stand-in that says one token."""

import asyncio
from typing import Any, cast

from proxied import QWEN3, Scripted

from gagar_mcore.agent.session import SessionKey, SessionRunner
from gagar_mcore.config.load import load_recipe
from gagar_mcore.controller.services import own_limits, session_limits
from gagar_mcore.records.types import Verification
from gagar_mcore.rollout.group import Sampler
from gagar_mcore.rollout.slots import Slots
from gagar_mcore.tasks.question import Question
from gagar_sandbox.types import Limits, SandboxPool

MIX = "tasks={mix: [{name: own, source: questions, temperature: 0.5, max_new_tokens: 7, max_context: 99}, {name: plain}]}"


class Judge:
    async def verify(self, task: Any, submission: str) -> Verification:
        return Verification(1.0, {}, "", 0.0)


def test_each_source_samples_by_its_own_limits() -> None:
    recipe = load_recipe("tiny", [MIX, "rollout.temperature=1.25", "rollout.max_new_tokens=9", "rollout.max_context=300"])
    engine = Scripted(QWEN3, [[QWEN3.stop_token_ids[0]]] * 4)
    runner = SessionRunner(cast(SandboxPool, None), cast(Any, None), QWEN3, session_limits(recipe), Limits())
    sampler = Sampler(runner, engine, Judge(), Slots(4), False, False, False, own_limits(recipe))

    async def ends(source: str, words: int) -> str:
        question = Question("q", "x" * words, source=source)
        [trajectory] = await sampler.sample([SessionKey(1, "train", 1, "g", 0)], question, lambda trajectory: None)
        return trajectory.end_reason

    room = len(QWEN3.prompt("x" * 100)) - 100  # a token a letter
    assert asyncio.run(ends("own", 99 - 7 - room)) == asyncio.run(ends("plain", 300 - 9 - room)) == "finished"
    assert asyncio.run(ends("own", 100 - 7 - room)) == asyncio.run(ends("plain", 301 - 9 - room)) == "max_context"
    assert [(request.temperature, request.max_new_tokens) for request in engine.asked] == [(0.5, 7), (1.25, 9)]
