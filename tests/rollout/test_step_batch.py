"""A step's batch while it is collected: what is on disk, what stays in memory, what a kill leaves."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gagar_mcore.records.batch import read_batch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import to_plain
from gagar_mcore.records.store import RecordError, publish_json, read_manifest, sweep_temporaries
from gagar_mcore.records.types import Credit, Group, Trajectory, WeightSpan
from gagar_mcore.rollout.group import FinishedGroup
from gagar_mcore.rollout.step_batch import StepBatch
from gagar_mcore.tasks.task import Task

TASK = Task("task", Path(), "", Path(), Path(), (), (), source="code")


def group(index: int, member: Trajectory, kept: bool = True) -> FinishedGroup:
    credit = Credit("grpo", kept, None if kept else "all_fail", None, 1.0, False, {member.id: 0.5} if kept else {})
    return FinishedGroup(Group(f"g{index}", 1, "task", [member.id], None, credit), TASK, [member])


@pytest.fixture
def groups(make_trajectory: Callable[..., Trajectory]) -> list[FinishedGroup]:
    """The second is dropped."""
    members = [make_trajectory(i, generated=2 + i, reward=1.0 if i == 2 else 0.0) for i in range(3)]
    return [group(i, member, kept=i != 1) for i, member in enumerate(members)]


def open_batch(root: Path, in_order: bool = False) -> StepBatch:
    return StepBatch(RunLayout(root), 1, lambda task, patch: True, in_order)


async def publish(batch: StepBatch, kept: list[FinishedGroup]) -> None:
    await batch.publish(kept, "token-mean", {"step": 1}, 3, lambda: None)


def test_groups_are_on_disk_as_they_complete_and_only_samples_stay(tmp_path: Path, groups: list[FinishedGroup]) -> None:
    async def main() -> list[FinishedGroup]:
        with open_batch(tmp_path) as batch:
            taken = [await batch.take(groups[i]) for i in (2, 1, 0)]
            await publish(batch, [taken[2], taken[0]])
            return taken

    taken = asyncio.run(main())
    assert all(not t.trajectories and len(t.samples) == 1 for t in taken)
    [sample] = taken[0].samples
    assert (sample.source, sample.passed, sample.clean, sample.generated, sample.oldest) == ("code", True, True, 4, 0)
    assert sample.surprise == pytest.approx(4 * 0.5)
    batch, meta = read_batch(RunLayout(tmp_path).batch(1))
    assert meta["trajectory_ids"] == [groups[2].trajectories[0].id, groups[0].trajectories[0].id]
    assert (meta["step"], meta["prompts"]) == (1, 2)
    assert batch.weights.tolist() == [1 / 6] * 2
    assert read_manifest(RunLayout(tmp_path).batch(1), "batch", verify=True).epoch == 3


def test_in_order_the_batch_is_read_back_from_the_records(tmp_path: Path, groups: list[FinishedGroup]) -> None:
    layout = RunLayout(tmp_path)

    async def main() -> None:
        with open_batch(tmp_path, in_order=True) as batch:
            taken = {i: await batch.take(groups[i]) for i in (2, 0)}
            with pytest.raises(RecordError, match="no such record"):
                await publish(batch, [taken[0]])
        for finished in groups:
            [trajectory] = finished.trajectories
            publish_json(layout.trajectory(1, trajectory.id), to_plain(trajectory), 1)
        with open_batch(tmp_path, in_order=True) as batch:
            await publish(batch, [taken[0], taken[2]])

    asyncio.run(main())
    assert read_batch(layout.batch(1))[1]["trajectory_ids"] == [groups[i].trajectories[0].id for i in (0, 2)]


def test_what_is_not_published_is_deleted_and_what_a_kill_leaves_is_swept(tmp_path: Path, groups: list[FinishedGroup]) -> None:
    place = RunLayout(tmp_path).batch(1)
    with open_batch(tmp_path) as batch:
        asyncio.run(batch.take(groups[0]))
        assert [path.name[:7] for path in place.parent.iterdir()] == [".batch."]
    assert not list(place.parent.iterdir())

    killed = open_batch(tmp_path)
    asyncio.run(killed.take(groups[0]))
    sweep_temporaries(tmp_path)
    assert not list(place.parent.iterdir())


def test_a_writer_that_lost_the_run_publishes_nothing(tmp_path: Path, groups: list[FinishedGroup]) -> None:
    def fence() -> None:
        raise RuntimeError("another has taken over")

    async def main() -> None:
        with open_batch(tmp_path) as batch:
            taken = await batch.take(groups[0])
            await batch.publish([taken], "token-mean", {}, 1, fence)

    with pytest.raises(RuntimeError, match="taken over"):
        asyncio.run(main())
    assert not RunLayout(tmp_path).batch(1).exists()


def test_the_oldest_tokens_of_a_sample(tmp_path: Path, make_trajectory: Callable[..., Trajectory]) -> None:
    spans = [WeightSpan(5, 4, 6), WeightSpan(3, 6, 7)]
    with open_batch(tmp_path) as batch:
        taken = asyncio.run(batch.take(group(0, make_trajectory(weight_spans=spans))))
    assert taken.samples[0].oldest == 3
