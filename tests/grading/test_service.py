import asyncio
import threading
from dataclasses import replace

import pytest
from grading_builders import make_task, repair, trajectory

from gagar_mcore.config.learning import GradingSection
from gagar_mcore.credit import CreditParams
from gagar_mcore.grading.protocol import GraderError, SessionFailed
from gagar_mcore.grading.service import GradingService
from gagar_mcore.grading.static import StaticGrader
from gagar_mcore.records.types import Grade, Verdict

LONG, SHORT = 30.0, 0.2


class Scripted:
    """A grader that awaits what it is told and answers with the verdict it is given."""

    def __init__(self, act, verdict=None):
        self.act = act
        self.verdict = verdict or Verdict("scripted", {"good": Grade(5, 5, 5, 5, 5)})
        self.running = self.most = 0
        self.cancelled = 0

    async def grade(self, workspace):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.act()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return self.verdict


async def at_once():
    pass


async def for_ever():
    await asyncio.Event().wait()


def grade(tmp_path, grader, deadline_s=LONG, groups=1, slots=4):
    task = make_task(tmp_path / "task")
    members = [trajectory("good", repair()), trajectory("bad", reward=0.0)]

    async def run():
        service = GradingService(grader, deadline_s, asyncio.Semaphore(slots), CreditParams())
        return await asyncio.gather(*(service.grade(tmp_path / f"ws{i}", "g", task, members) for i in range(groups)))

    return asyncio.run(run())


def test_a_usable_verdict_comes_with_its_time(tmp_path):
    [(verdict, reason, seconds)] = grade(tmp_path, Scripted(at_once))
    assert reason is None and verdict.grades["good"].approach == 5
    assert verdict.seconds == seconds > 0
    assert (tmp_path / "ws0/manifest.json").is_file()


def test_the_static_grader_through_the_service(tmp_path):
    [(verdict, reason, _)] = grade(tmp_path, StaticGrader(CreditParams()))
    assert (verdict.grader, reason, list(verdict.grades)) == ("static", None, ["good"])


def test_a_late_grader_is_cancelled(tmp_path):
    grader = Scripted(for_ever)
    [(verdict, reason, _)] = grade(tmp_path, grader, SHORT)
    assert (verdict, reason, grader.cancelled) == (None, "late", 1)


def test_a_grader_that_does_not_heed_cancellation_is_left_behind(tmp_path):
    released = asyncio.Event()

    async def stubborn():
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                asyncio.get_running_loop().call_later(SHORT, released.set)

    [(verdict, reason, _)] = grade(tmp_path, Scripted(stubborn), SHORT)
    assert (verdict, reason) == (None, "late")


def test_a_grader_stuck_in_a_thread_is_left_behind(tmp_path):
    release = threading.Event()
    task = make_task(tmp_path / "task")

    async def stuck():
        await asyncio.to_thread(release.wait, LONG)

    async def run():
        service = GradingService(Scripted(stuck), SHORT, asyncio.Semaphore(1), CreditParams())
        answer = await service.grade(tmp_path / "ws", "g", task, [trajectory("good", repair())])
        was_stuck = not release.is_set()
        release.set()
        return answer, was_stuck

    (verdict, reason, _), was_stuck = asyncio.run(run())
    assert (verdict, reason, was_stuck) == (None, "late", True)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GraderError("no answer"), "failed: GraderError: no answer"),
        (ZeroDivisionError("x" * 1000), "failed: ZeroDivisionError: xxx"),
        (RecursionError(), "failed: RecursionError"),
        (asyncio.CancelledError(), "failed: CancelledError"),
        (TimeoutError(), "failed: TimeoutError"),
    ],
)
def test_a_grader_that_fails_is_a_counted_fallback(tmp_path, error, reason):
    async def fail():
        raise error

    [(verdict, found, _)] = grade(tmp_path, Scripted(fail))
    assert verdict is None and found.startswith(reason) and len(found) <= 300


@pytest.mark.parametrize(
    "verdict",
    [
        "perfect",
        Verdict("scripted", {}),
        Verdict("scripted", {"good": Grade(5, 5, 5, 5, 9)}),
        Verdict("scripted", {"good": Grade(5, 5, 5, 5, 5), "bad": Grade(5, 5, 5, 5, 5)}),
        Verdict("scripted", {"good": Grade(5, 5, 5, 5, 5, citations=["turn:99"])}),
        Verdict("scripted", {"good": Grade(1, 5, 5, 5, 5)}),
    ],
)
def test_an_invalid_verdict_is_a_counted_fallback(tmp_path, verdict):
    [(found, reason, _)] = grade(tmp_path, Scripted(at_once, verdict))
    assert found is None and reason.startswith("invalid: ")


def test_a_workspace_that_cannot_be_written_is_a_counted_fallback(tmp_path):
    (tmp_path / "ws0").write_text("in the way")
    [(verdict, reason, _)] = grade(tmp_path, Scripted(at_once))
    assert verdict is None and reason.startswith("failed: ")


def test_concurrency_is_bounded(tmp_path):
    async def not_alone():
        while grader.most < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)

    grader = Scripted(not_alone)
    answers = grade(tmp_path, grader, groups=7, slots=2)
    assert grader.most == 2
    assert all(reason is None for _, reason, _ in answers)


def test_the_wait_for_a_slot_counts(tmp_path):
    answers = grade(tmp_path, Scripted(for_ever), SHORT, groups=3, slots=1)
    assert [reason for _, reason, _ in answers] == ["late"] * 3


def test_cancelling_the_step_cancels_the_grader(tmp_path):
    grader = Scripted(for_ever)
    task = make_task(tmp_path / "task")

    async def run():
        service = GradingService(grader, LONG, asyncio.Semaphore(1), CreditParams())
        step = asyncio.create_task(service.grade(tmp_path / "ws", "g", task, [trajectory("good", repair())]))
        while not grader.running:
            await asyncio.sleep(0.01)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        await asyncio.sleep(0)
        return step.cancelled()

    assert asyncio.run(run())
    assert grader.cancelled == 1


def test_without_a_grader_nothing_is_graded_or_written(tmp_path):
    assert grade(tmp_path, None) == [(None, None, 0.0)]
    assert not (tmp_path / "ws0").exists()


def test_groups_are_counted_by_what_became_of_them(tmp_path):
    async def fail():
        raise SessionFailed("tokens", "all used")

    task, members = make_task(tmp_path / "task"), [trajectory("good", repair()), trajectory("bad", reward=0.0)]

    async def run():
        graders = [Scripted(at_once), Scripted(at_once, Verdict("scripted", {})), Scripted(fail), Scripted(for_ever)]
        service = GradingService(graders[0], LONG, asyncio.Semaphore(1), CreditParams())
        for grader in graders:
            one = replace(service, grader=grader, deadline_s=SHORT if grader.act is for_ever else LONG)
            await one.grade(tmp_path / "workspace", "g", task, members)
        return service.tally

    tally = asyncio.run(run())
    found = tally.take()
    counted = {"eligible": 4, "graded": 1, "fallback_invalid": 1, "fallback_tokens": 1, "fallback_late": 1}
    assert {name: value for name, value in found.items() if value} == {f"grading/{n}": v for n, v in counted.items()}
    assert set(tally.take()) == set(found) and not any(tally.take().values())


def test_a_recipe_section_chooses_the_grader():
    params = CreditParams(t3=0.1)
    assert GradingService.from_section(GradingSection(), params).grader == StaticGrader(params)
    assert GradingService.from_section(GradingSection(grader="none"), params).grader is None
