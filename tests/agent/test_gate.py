"""Time is virtual: what is tested is which calls wait, and which deadlines."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from gagar_mcore.agent.gate import Gate, GatedEngine
from gagar_mcore.engine.protocol import Engine, GenerateRequest, Generation
from gagar_mcore.plan.virtual_time import run_virtually


class Answering:
    """Takes five seconds a call; says when each was begun."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        self.begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(5.0)
        return []


def test_a_call_that_was_begun_ends_and_the_next_waits_for_the_gate() -> None:
    answering = Answering()

    async def main() -> None:
        gate = Gate()
        engine = GatedEngine(cast(Engine, answering), gate)

        async def turns() -> None:
            for _ in range(3):
                await engine.generate([])

        session = asyncio.create_task(turns())
        await asyncio.sleep(7.0)
        gate.close()
        await asyncio.sleep(100.0)
        gate.open()
        await session

    run_virtually(main())
    assert answering.begun == pytest.approx([0.0, 5.0, 107.0])


@pytest.mark.parametrize(("closed_at", "opened_at", "ends"), [(20.0, 30.0, 10.0), (4.0, 100.0, 106.0)])
def test_a_deadline_stands_still_while_the_gate_is_closed(closed_at: float, opened_at: float, ends: float) -> None:
    async def main() -> float:
        loop, gate = asyncio.get_running_loop(), Gate()
        loop.call_later(closed_at, gate.close)
        loop.call_later(opened_at, gate.open)
        with pytest.raises(TimeoutError):
            async with gate.deadline(10.0):
                await asyncio.sleep(1e6)
        return loop.time()

    assert run_virtually(main()) == pytest.approx(ends)


def test_a_deadline_that_begins_behind_a_closed_gate_counts_from_its_opening() -> None:
    async def main() -> tuple[float, Any]:
        loop, gate = asyncio.get_running_loop(), Gate()
        gate.close()
        gate.close()
        loop.call_later(50.0, gate.open)
        with pytest.raises(TimeoutError):
            async with gate.deadline(10.0):
                await asyncio.sleep(1e6)
        async with gate.deadline(10.0):
            await asyncio.sleep(1.0)
        gate.close()
        return loop.time(), gate.is_open

    assert run_virtually(main()) == (pytest.approx(61.0), False)


def test_the_gate_moves_while_a_session_whose_deadline_has_passed_still_cleans_up() -> None:
    async def main() -> float:
        loop, gate = asyncio.get_running_loop(), Gate()
        with pytest.raises(TimeoutError):
            async with gate.deadline(10.0):
                try:
                    await asyncio.sleep(1e6)
                finally:
                    gate.close()
                    await asyncio.sleep(5.0)
                    gate.open()
        return loop.time()

    assert run_virtually(main()) == pytest.approx(15.0)
