import asyncio

import pytest

from gagar_mcore.plan.virtual_time import run_virtually
from gagar_mcore.rollout.slots import Rank, Slots


async def occupy(slots: Slots, name: str, order: list[str], count: int = 1, rank: Rank = (), seconds: float = 1.0) -> None:
    async with slots.hold(count, rank):
        order.append(name)
        await asyncio.sleep(seconds)


def test_the_lowest_rank_goes_first_and_nobody_overtakes_it() -> None:
    async def main() -> list[str]:
        slots, order = Slots(2), list[str]()
        jobs = [("a", 1, (5,)), ("b", 1, (4,)), ("late", 1, (3,)), ("pair", 2, (1,)), ("early", 1, (0,))]
        await asyncio.gather(*(occupy(slots, name, order, count, rank) for name, count, rank in jobs))
        assert slots.free == 2
        return order

    assert run_virtually(main()) == ["a", "b", "early", "pair", "late"]


def test_who_gives_up_waiting_holds_nobody_back() -> None:
    async def main() -> list[str]:
        slots, order = Slots(2), list[str]()
        first = asyncio.create_task(occupy(slots, "one", order))
        await asyncio.sleep(0.1)
        pair = asyncio.create_task(occupy(slots, "pair", order, 2))
        await asyncio.sleep(0.1)
        behind = asyncio.create_task(occupy(slots, "behind", order))
        await asyncio.sleep(0.1)
        assert order == ["one"]
        pair.cancel()
        await asyncio.gather(first, behind)
        assert asyncio.get_running_loop().time() == pytest.approx(1.3)
        assert slots.free == 2
        return order

    assert run_virtually(main()) == ["one", "behind"]


def test_a_slot_granted_to_one_that_is_cancelled_is_given_back() -> None:
    async def main() -> int:
        slots, order = Slots(1), list[str]()
        first = asyncio.create_task(occupy(slots, "first", order))
        await asyncio.sleep(0)
        second = asyncio.create_task(occupy(slots, "second", order))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)  # the slot is handed over; the second has not run since
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        return slots.free

    assert run_virtually(main()) == 1


def test_idle_share_counts_slots_by_their_time() -> None:
    async def main() -> float:
        slots = Slots(4)
        before = slots.busy_seconds()
        await occupy(slots, "", [], 2, seconds=3.0)
        await asyncio.sleep(1.0)
        return slots.idle_share(before, 4.0)

    assert run_virtually(main()) == pytest.approx(1 - 6 / 16)


def test_more_than_there_are_is_an_error() -> None:
    async def main() -> None:
        async with Slots(3).hold(4):
            raise AssertionError

    with pytest.raises(ValueError, match="4 sessions must run at once, but there is room for 3"):
        run_virtually(main())
