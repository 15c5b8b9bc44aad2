"""The engine below is scripted: what is tested is only which calls reach it, and when."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation
from gagar_mcore.rollout.lockstep import LockstepEngine


class Scripted:
    """Answers with the length of the context, records its calls, and fails where told to."""

    def __init__(self, fail: bool = False) -> None:
        self.calls: list[list[str]] = []
        self.ended: list[str] = []
        self.fail = fail

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        self.calls.append([r.session_id for r in requests])
        await asyncio.sleep(0)
        if self.fail:
            raise EngineError("gone")
        return [Generation([len(r.input_ids)], [0.0], [], "stop") for r in requests]

    async def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)

    async def load_weights(self, directory: Path, version: int) -> None: ...

    async def release_memory(self) -> None: ...

    async def close(self) -> None: ...


def request(session: str, tokens: int = 1) -> GenerateRequest:
    return GenerateRequest(session, [7] * tokens, 4, 1.0, 0, ())


async def session(engine: LockstepEngine, name: str, turns: int, pause: float) -> list[int]:
    lengths = []
    for turn in range(turns):
        await asyncio.sleep(pause)
        [generation] = await engine.generate([request(name, turn + 1)])
        lengths += generation.token_ids
    await engine.end_session(name)
    return lengths


def run_sessions(pauses: dict[str, float]) -> tuple[Scripted, list[list[int]]]:
    async def main() -> tuple[Scripted, list[list[int]]]:
        scripted = Scripted()
        engine = LockstepEngine(scripted, ["a", "b", "c"])
        turns = {"a": 3, "b": 1, "c": 2}
        answers = await asyncio.gather(*(session(engine, name, turns[name], pauses[name]) for name in turns))
        return scripted, list(answers)

    return asyncio.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize(
    "pauses", [{"a": 0, "b": 0, "c": 0}, {"a": 0.02, "b": 0, "c": 0.01}, {"a": 0, "b": 0.03, "c": 0.01}], ids=str
)
def test_calls_depend_on_the_group_alone_and_not_on_who_is_slow(pauses: dict[str, float]) -> None:
    scripted, answers = run_sessions(pauses)
    assert scripted.calls == [["a", "b", "c"], ["a", "c"], ["a"]]
    assert answers == [[1, 2, 3], [1], [1, 2]]
    assert sorted(scripted.ended) == ["a", "b", "c"]


def test_a_failing_engine_fails_every_waiting_session() -> None:
    async def main() -> list[BaseException | list[int]]:
        engine = LockstepEngine(Scripted(fail=True), ["a", "b"])
        return list(await asyncio.gather(*(session(engine, n, 1, 0) for n in "ab"), return_exceptions=True))

    assert [type(r) for r in asyncio.run(asyncio.wait_for(main(), 10))] == [EngineError, EngineError]


def test_a_cancelled_session_does_not_hold_up_the_others() -> None:
    async def main() -> list[int]:
        engine = LockstepEngine(Scripted(), ["a", "b"])
        waiting = asyncio.create_task(engine.generate([request("b")]))
        await asyncio.sleep(0)
        waiting.cancel()
        await engine.end_session("b")
        return await session(engine, "a", 2, 0)

    assert asyncio.run(asyncio.wait_for(main(), 10)) == [1, 2]
