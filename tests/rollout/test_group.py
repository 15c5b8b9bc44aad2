"""Groups with real parts: the shipped policy, its engine process, sandboxes, tests, the static grader."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.controller.engines import start_engine
from gagar_mcore.controller.services import build_sampler, credit_params, open_pools
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.grading.service import GradingService
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.types import Trajectory
from gagar_mcore.rollout.group import FinishedGroup, GroupPipeline
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.task import Task
from gagar_mcore.tasks.write import write_task

CHECKPOINT = shipped_checkpoint("tiny-mimo-v2")
RECIPE = load_recipe("tiny", ["deterministic=true", "rollout.group_size=6", "engine.threads=1"])


@asynccontextmanager
async def open_pipeline(root: Path, recipe: Recipe = RECIPE) -> AsyncIterator[GroupPipeline]:
    assert CHECKPOINT is not None
    async with open_pools(recipe) as pools:
        engine = await start_engine(recipe, root / "engine.log", CHECKPOINT, 4)
        try:
            yield GroupPipeline(
                layout=RunLayout(root),
                epoch=1,
                seed=recipe.seed,
                group_size=recipe.rollout.group_size,
                sampler=build_sampler(recipe, engine, pools, load_renderer(CHECKPOINT)),
                grading=GradingService.from_section(recipe.grading, credit_params(recipe)),
                credit=credit_params(recipe),
                progress=lambda event: None,
            )
        finally:
            await engine.close()


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return load_task(write_task(generate_task(5, 3), tmp_path_factory.mktemp("tasks")))


@pytest.fixture(scope="module")
def first(task: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[FinishedGroup]]:
    """Two groups of one task, run at the same time, and where they lie."""
    root = tmp_path_factory.mktemp("run")

    async def main() -> list[FinishedGroup]:
        async with open_pipeline(root) as pipeline:
            return list(await asyncio.gather(pipeline.run(1, 0, task), pipeline.run(1, 1, task)))

    return root, asyncio.run(asyncio.wait_for(main(), 150))


def trajectories(groups: list[FinishedGroup]) -> list[Trajectory]:
    return [t for group in groups for t in group.trajectories]


def comparable(trajectory: Trajectory) -> Trajectory:
    """Without what depends on the clock."""
    turns = [replace(turn, seconds=0.0, engine_seconds=0.0) for turn in trajectory.turns]
    verification = trajectory.verification and replace(trajectory.verification, seconds=0.0)
    return replace(trajectory, turns=turns, verification=verification, seconds=0.0)


def test_what_was_generated_is_what_is_trained(first: tuple[Path, list[FinishedGroup]], task: Task) -> None:
    assert CHECKPOINT is not None
    renderer = load_renderer(CHECKPOINT)
    for trajectory in trajectories(first[1]):
        ids, mask = np.asarray(trajectory.token_ids), np.asarray(trajectory.loss_mask)
        assert len(ids) == len(mask) == len(trajectory.logprobs)
        assert mask.sum() == sum(turn.generated_tokens for turn in trajectory.turns)
        assert all((value < 0) == bool(own) for value, own in zip(trajectory.logprobs, mask, strict=True))
        edges = np.flatnonzero(np.diff(mask, prepend=0, append=0))
        spans = [ids[a:b].tolist() for a, b in zip(edges[::2], edges[1::2], strict=True)]
        assert [renderer.decode(span) for span in spans] == [turn.action for turn in trajectory.turns]
        context = [ids[a:b].tolist() for a, b in zip([0, *edges[1::2]], [*edges[::2], len(ids)], strict=True) if a < b]
        seen = [t.observation for t in trajectory.turns[: len(context) - 1]]
        assert context == [renderer.prompt(task.instruction), *(renderer.observation(text) for text in seen)]
        assert {span.version for span in trajectory.weight_spans} == {4}


def test_rewards_come_from_the_tests_and_only_for_finished_sessions(first: tuple[Path, list[FinishedGroup]]) -> None:
    seen = trajectories(first[1])
    assert {t.passed for t in seen} == {True, False}
    for trajectory in seen:
        assert trajectory.valid
        if trajectory.passed:
            assert trajectory.end_reason == "finished"
            assert trajectory.verification is not None
            assert set(trajectory.verification.tests.values()) == {"passed"}


def test_a_group_depends_on_its_seed_alone_and_not_on_what_runs_beside_it(
    first: tuple[Path, list[FinishedGroup]], task: Task, tmp_path: Path
) -> None:
    async def main() -> FinishedGroup:
        async with open_pipeline(tmp_path) as pipeline:
            return await pipeline.run(1, 1, task)

    alone = asyncio.run(asyncio.wait_for(main(), 150))
    beside = first[1][1]
    assert [comparable(t) for t in alone.trajectories] == [comparable(t) for t in beside.trajectories]
    assert alone.group.credit == beside.group.credit


def test_what_is_on_disk_is_not_made_again(first: tuple[Path, list[FinishedGroup]], task: Task) -> None:
    """A finished group is read back; of an unfinished one, outside lockstep, verified trajectories are kept."""
    root, groups = first
    layout = RunLayout(root)
    second = groups[1].group
    layout.group(1, second.id).unlink()
    layout.trajectory(1, second.trajectory_ids[2]).unlink()
    recipe = RECIPE.model_copy(update={"deterministic": False})
    asked: list[str] = []

    class Watching:
        def __init__(self, pipeline: GroupPipeline) -> None:
            self.engine = pipeline.sampler.engine

        async def generate(self, requests: list[GenerateRequest]) -> object:
            asked.extend(r.session_id for r in requests)
            return await self.engine.generate(requests)

        def __getattr__(self, name: str) -> object:
            return getattr(self.engine, name)

    async def main() -> list[FinishedGroup]:
        async with open_pipeline(root, recipe) as pipeline:
            watched = replace(pipeline, sampler=replace(pipeline.sampler, engine=Watching(pipeline)))
            return [await watched.run(1, 0, task), await watched.run(1, 1, task)]

    again = asyncio.run(asyncio.wait_for(main(), 150))
    assert set(asked) == {second.trajectory_ids[2]}
    assert again[0].group == groups[0].group
    kept = [t for t in again[1].trajectories if t.id != second.trajectory_ids[2]]
    assert kept == [t for t in groups[1].trajectories if t.id != second.trajectory_ids[2]]


def test_a_lost_engine_makes_trajectories_invalid_and_a_restart_samples_them_again(task: Task, tmp_path: Path) -> None:
    class Gone:
        async def generate(self, requests: object) -> object:
            raise EngineError("gone")

        async def end_session(self, session_id: str) -> None: ...

    async def main() -> list[FinishedGroup]:
        async with open_pipeline(tmp_path, RECIPE.model_copy(update={"deterministic": False})) as pipeline:
            without = replace(pipeline, sampler=replace(pipeline.sampler, engine=Gone()))
            return [await without.run(1, 0, task), await pipeline.run(1, 0, task)]

    group, again = asyncio.run(asyncio.wait_for(main(), 150))
    assert all(t.valid for t in again.trajectories)
    assert {(t.valid, t.invalid_reason) for t in group.trajectories} == {(False, "engine_failed")}
    assert group.group.credit.dropped == "too_few_valid"
