"""A run directory changes hands: what is refused, what may change, and where the next owner goes on."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from stored import write_stored

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.controller.run import Run, open_run
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import directory_digest, read_manifest
from gagar_mcore.records.types import Credit, Group, Trajectory
from gagar_mcore.rollout.carry import Carried
from gagar_mcore.rollout.group import FinishedGroup
from gagar_mcore.rollout.step_batch import StepBatch
from gagar_mcore.tasks.mix import Place
from gagar_mcore.tasks.task import Task
from gagar_mcore.weights.files import link_checkpoint, read_companions
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import Storage

TASK = Task("task", Path(), "", Path(), Path(), (), ())


def finished(member: Trajectory, step: int) -> FinishedGroup:
    credit = Credit("gagar", True, None, None, 1.0, False, {member.id: 0.5})
    return FinishedGroup(Group("g", step, "task", [member.id], None, credit), TASK, [member])


def publish(run: Run, step: int, group: FinishedGroup) -> None:
    """The batch of a step that leaves a group of its own under way."""
    meta = {"next_position": {"": {"start": 5}}, "carried": [{"step": step, "index": 7, "task": "t"}]}

    async def main() -> None:
        with StepBatch(run.layout, step, lambda task, patch: False, in_order=False) as batch:
            await batch.publish([await batch.take(group)], "token-mean", meta, run.epoch.number, run.fence)

    asyncio.run(main())


def recipe(root: Path, *overrides: str) -> Recipe:
    return load_recipe("tiny", [f"output={root}", *overrides])


def test_a_fresh_run_begins_with_the_initial_weights(tmp_path: Path) -> None:
    with open_run(recipe(tmp_path / "run"), resume=False) as run:
        assert (run.epoch.number, run.next_step, run.position, run.carried) == (1, 1, {}, [])
        assert read_manifest(run.layout.weights(0), "weights", verify=True).meta["version"] == 0


def test_version_0_are_the_files_of_the_checkpoint(tmp_path: Path) -> None:
    shipped = shipped_checkpoint("tiny-mimo-v2")
    assert shipped is not None
    source = PublishedCheckpoint(shipped)
    checkpoint = write_stored(
        Storage(source.model, "mxfp4", "fused"), source.read, read_companions(shipped), tmp_path / "mxfp4", max_bytes=100_000
    )
    (checkpoint / "pytorch_model.bin").write_bytes(b"the same weights once more")
    files = {path.name for path in checkpoint.iterdir() if path.suffix != ".bin"}
    with open_run(recipe(tmp_path / "run", f"model.init={checkpoint}"), resume=False) as run:
        published = run.layout.weights(0)
        assert set(read_manifest(published, "weights", verify=True).files) == files
        assert all((published / name).samefile(checkpoint / name) for name in files)
    assert len(files) > 5


def test_files_of_another_file_system_are_copied(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    shipped = shipped_checkpoint("tiny-mimo-v2")
    assert shipped is not None
    with tempfile.TemporaryDirectory(dir=shared) as elsewhere:
        link_checkpoint(shipped, Path(elsewhere))
        assert directory_digest(Path(elsewhere)) == directory_digest(shipped)


def test_the_next_owner_goes_on_after_the_last_batch_in_a_new_epoch(
    tmp_path: Path, make_trajectory: Callable[..., Trajectory]
) -> None:
    group = finished(make_trajectory(), 1)
    with open_run(recipe(tmp_path / "run"), resume=False) as run:
        publish(run, 1, group)
    with open_run(recipe(tmp_path / "run"), resume=True) as run:
        assert (run.epoch.number, run.next_step, run.position) == (2, 2, {"": Place(start=5)})
        assert run.carried == [Carried(1, 7, "t")]


def test_what_earlier_steps_depended_on_may_not_change(tmp_path: Path) -> None:
    with open_run(recipe(tmp_path / "run"), resume=False):
        pass
    changed = recipe(tmp_path / "run", "seed=3", "trainer.optimizer.lr=1")
    with pytest.raises(RecipeError, match=r"^seed, trainer\.optimizer\.lr: differs"), open_run(changed, resume=True):
        pass


def test_a_run_cannot_become_shorter_than_it_is(tmp_path: Path, make_trajectory: Callable[..., Trajectory]) -> None:
    group = finished(make_trajectory(), 3)
    with open_run(recipe(tmp_path / "run"), resume=False) as run:
        publish(run, 3, group)
    with open_run(recipe(tmp_path / "run", "train.steps=3"), resume=True) as run:
        assert run.next_step == 4
    with (
        pytest.raises(RecipeError, match=r"^train\.steps: 2 is less than the 3 steps"),
        open_run(recipe(tmp_path / "run", "train.steps=2"), resume=True),
    ):
        pass


def test_length_deadlines_and_tracking_may_change(tmp_path: Path) -> None:
    with open_run(recipe(tmp_path / "run"), resume=False):
        pass
    changes = [
        "train.steps=99",
        "trainer.step_timeout_s=900",
        "engine.deadline_s=900",
        "tracking.wandb=off",
        "retention.weights=9",
    ]
    with open_run(recipe(tmp_path / "run", *changes), resume=True):
        pass
    assert load_recipe(str(RunLayout(tmp_path / "run").recipe)).train.steps == 99


def test_a_run_killed_before_it_wrote_its_recipe_is_resumed(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    layout.lock.touch()
    (layout.root / ".recipe.yaml.1.tmp").write_text("name")
    with open_run(recipe(layout.root), resume=True) as run:
        assert (run.epoch.number, run.next_step) == (1, 1)
    assert not list(layout.root.glob(".*.tmp"))


def test_the_layout_of_the_trainer_may_change(tmp_path: Path) -> None:
    with open_run(recipe(tmp_path / "run"), resume=False):
        pass
    changes = ["trainer.tp=1", "trainer.ep=4", "trainer.dp=2", "trainer.cp=2", "trainer.tokens_per_microbatch=512"]
    with open_run(recipe(tmp_path / "run", *changes), resume=True):
        pass
    assert load_recipe(str(RunLayout(tmp_path / "run").recipe)).trainer.world_size == 4
