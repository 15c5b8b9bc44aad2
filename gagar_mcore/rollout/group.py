"""One group: sessions, verification, grading and credit of one task, each on disk before the next stage depends on it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

from gagar_mcore.agent.proxy.runner import OutsideRunner
from gagar_mcore.agent.session import SessionKey, SessionLimits, SessionRunner
from gagar_mcore.credit import CreditParams, compute_credit
from gagar_mcore.engine.protocol import Engine
from gagar_mcore.grading.service import GradingService
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import from_plain, to_plain
from gagar_mcore.records.store import publish_json, read_json
from gagar_mcore.records.types import DropReason, Group, Trajectory, Verdict, Verification
from gagar_mcore.rollout.concurrency import gather_all
from gagar_mcore.rollout.lockstep import LockstepEngine
from gagar_mcore.rollout.samples import Sample
from gagar_mcore.rollout.slots import FIRST, Rank, Slots
from gagar_mcore.rollout.staleness import Staleness
from gagar_mcore.tasks.question import Problem, Question
from gagar_mcore.verify.judge import Judge

Event = Literal["verified", "grading", "graded"]


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A group with its trajectories, in member order, or with what a step keeps of them once they are in its batch."""

    group: Group
    task: Problem
    trajectories: list[Trajectory]
    samples: list[Sample] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return self.group.credit.kept

    @property
    def dropped(self) -> DropReason | None:
        return self.group.credit.dropped


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples and verifies the sessions of one task, each in one of the `slots`. In lockstep, engine calls are shared by one
    group and nothing else; all its sessions then wait for each other, so that they take their slots together."""

    sessions: SessionRunner | OutsideRunner
    engine: Engine
    judge: Judge
    slots: Slots
    lockstep: bool
    submit_unfinished: bool
    reuse_identical: bool
    own_limits: Mapping[str, SessionLimits] = field(default_factory=dict)  # of sources whose sessions have their own

    async def sample(
        self, keys: list[SessionKey], task: Problem, done: Callable[[Trajectory], None], rank: Rank = FIRST
    ) -> list[Trajectory]:
        """One verified trajectory a key, in order; `done` sees each as soon as it is verified. `rank`: among all who wait for
        slots."""
        engine: Engine = LockstepEngine(self.engine, [k.trajectory_id for k in keys]) if self.lockstep else self.engine
        sessions = replace(self.sessions, limits=self.own_limits.get(task.source, self.sessions.limits))
        tested: dict[str, asyncio.Task[Verification]] = {}

        async def one(key: SessionKey) -> Trajectory:
            async with nullcontext() if self.lockstep else self.slots.hold(1, rank):
                trajectory = await sessions.run(key, task, engine)
            trajectory = await self._verified(trajectory, task, tested)
            done(trajectory)
            return trajectory

        async with self.slots.hold(len(keys), rank) if self.lockstep else nullcontext():
            return await gather_all(*(one(key) for key in keys))

    async def _verified(self, trajectory: Trajectory, task: Problem, tested: dict[str, asyncio.Task[Verification]]) -> Trajectory:
        if not trajectory.valid or not (trajectory.end_reason == "finished" or self.submit_unfinished):
            return trajectory
        test = tested.get(trajectory.patch) if self.reuse_identical else None
        if test is None:
            test = tested[trajectory.patch] = asyncio.create_task(self.judge.verify(task, trajectory.patch))
        verification = await test
        failed = verification.infrastructure_error is not None
        return replace(
            trajectory,
            verification=verification,
            reward=0.0 if failed else verification.reward,
            valid=not failed,
            invalid_reason="verifier_failed" if failed else None,
            invalid_detail=verification.infrastructure_error or "",
        )


@dataclass(frozen=True, slots=True)
class GroupPipeline:
    """Takes one group from task to credit, resuming from what an earlier process left on disk."""

    layout: RunLayout
    epoch: int
    seed: int
    group_size: int
    sampler: Sampler
    grading: GradingService
    credit: CreditParams
    progress: Callable[[Event], None]
    staleness: Staleness = field(default_factory=Staleness)

    async def run(self, step: int, index: int, task: Problem, rank: Rank = FIRST) -> FinishedGroup:
        """The group, published. A group of an earlier process is returned as it is; of one that was cut short, or that the
        infrastructure left without enough valid trajectories, the valid ones are kept, except in lockstep, where the group is
        sampled again as a whole."""
        group_id = f"s{step:06d}-g{index:04d}"
        if (stored := self._stored(step, group_id, task)) is not None:
            return stored
        trajectories = [self._fresh(step, t) for t in await self._sample(step, group_id, task, rank)]
        verdict, fallback = await self._grade(step, group_id, task, trajectories)
        params = replace(self.credit, method="grpo") if isinstance(task, Question) else self.credit
        credit = compute_credit(trajectories, verdict, params, fallback)
        group = Group(group_id, step, task.id, [t.id for t in trajectories], verdict, credit)
        publish_json(self.layout.group(step, group_id), to_plain(group), self.epoch)
        return FinishedGroup(group, task, trajectories)

    async def _grade(
        self, step: int, group_id: str, task: Problem, trajectories: list[Trajectory]
    ) -> tuple[Verdict | None, str | None]:
        """Verdict and fallback reason. Only a group of patches with mixed outcomes is graded: a right answer is none the better
        for how it was found."""
        outcomes = {t.passed for t in trajectories if t.valid}
        if outcomes != {True, False} or isinstance(task, Question):
            return None, None
        self.progress("grading")
        workspace = self.layout.workspace(step, group_id)
        verdict, fallback, _ = await self.grading.grade(workspace, group_id, task, trajectories)
        self.progress("graded")
        return verdict, fallback

    async def _sample(self, step: int, group_id: str, task: Problem, rank: Rank) -> list[Trajectory]:
        keys = [SessionKey(self.seed, "train", step, group_id, member) for member in range(self.group_size)]
        known = {} if self.sampler.lockstep else self._known(step, keys)

        def keep(trajectory: Trajectory) -> None:
            publish_json(self.layout.trajectory(step, trajectory.id), to_plain(trajectory), self.epoch)
            self.progress("verified")

        fresh = await self.sampler.sample([k for k in keys if k.trajectory_id not in known], task, keep, rank)
        return sorted([*known.values(), *fresh], key=lambda t: t.member)

    def _fresh(self, step: int, trajectory: Trajectory) -> Trajectory:
        """Itself, or what is published in its place where it is too old."""
        checked = self.staleness.checked(trajectory)
        if checked is not trajectory:
            publish_json(self.layout.trajectory(step, trajectory.id), to_plain(checked), self.epoch)
        return checked

    def _known(self, step: int, keys: list[SessionKey]) -> dict[str, Trajectory]:
        paths = {k.trajectory_id: self.layout.trajectory(step, k.trajectory_id) for k in keys}
        stored = {i: from_plain(Trajectory, read_json(p)) for i, p in paths.items() if p.exists()}
        return {i: trajectory for i, trajectory in stored.items() if trajectory.valid}

    def _stored(self, step: int, group_id: str, task: Problem) -> FinishedGroup | None:
        path = self.layout.group(step, group_id)
        if not path.exists():
            return None
        group = from_plain(Group, read_json(path))
        if group.credit.dropped == "too_few_valid":
            return None
        return FinishedGroup(group, task, list(read_trajectories(self.layout, group)))


def read_trajectories(layout: RunLayout, group: Group) -> Iterator[Trajectory]:
    """Those of a published group, one at a time. Raises RecordError where one is missing or damaged."""
    for trajectory_id in group.trajectory_ids:
        yield from_plain(Trajectory, read_json(layout.trajectory(group.step, trajectory_id)))
