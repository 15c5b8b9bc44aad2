"""`checkpoint_ranks.py ROOT CHAIN...` saves and loads in one layout after another, and writes `ROOT/CHAIN/PLACE.pt`.

The first layout of a chain trains two steps and saves; each after it loads what the one before saved and saves it again. All go
on training while the checkpoint is held back. The chain `mimo_v2: refusals` writes what two ranks say of checkpoints that they
cannot write or go on from."""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from logging.handlers import BufferingHandler
from pathlib import Path
from threading import Event
from typing import Any

import torch
import torch.distributed as dist
from conftest import RECIPE, random_batch
from layout_ranks import MODELS, start_ranks, telling_tensors

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.records.epochs import Fence, open_epoch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import MANIFEST, publish_directory
from gagar_mcore.trainer.rank import build_groups, join, prepare

SEQUENCES = 3
SAVED = 2
BF16 = "precision=bf16 optimizer.state_dtype=bf16"
REFUSALS = "mimo_v2: refusals"
CHAINS = {
    REFUSALS: ("tp=2 ep=2",),
    "mimo_v2: two ranks": ("tp=2 ep=2", "pp=2 vpp=2"),
    "qwen3_moe: bf16": (f"tp=2 ep=2 {BF16}", f"tp=2 ep=2 {BF16}", f"dp=2 offload_optimizer=true {BF16}"),
    "mimo_v2: one to eight": (
        "tp=1",
        "tp=2 ep=2",
        "tp=2 pp=2 ep=2",
        "ep=4 dp=2 cp=2",
        "tp=2 etp=2 dp=2",
        "pp=2 vpp=2 dp=2 ep=2",
        "tp=2 pp=2 dp=2 ep=4",
        "tp=4 dp=2 ep=2 etp=2",
        "tp=1",
    ),
    "mtp: one to eight": ("tp=1 mtp=train", "tp=2 pp=2 ep=2 mtp=train", "pp=2 vpp=2 cp=2 ep=2 dp=2 mtp=train", "tp=1 mtp=train"),
    "mimo_v2: bf16, one to eight": (f"tp=1 {BF16}", f"tp=2 pp=2 cp=2 ep=2 {BF16}", f"tp=1 {BF16}"),
    "qwen3_moe: one to eight": ("tp=1", "tp=2 etp=2", "ep=4 dp=4", "tp=2 pp=2 vpp=2 dp=2 ep=2", "tp=1"),
}


@dataclass(frozen=True)
class Stage:
    """The layout at `place` of a chain; root: where the chain lies."""

    root: Path
    place: int
    fields: str

    @property
    def family(self) -> str:
        return self.root.name.split(":")[0]

    @property
    def recipe(self) -> Recipe:
        always = "tp=1 ep=1 freeze_router=false tokens_per_microbatch=80 step_timeout_s=60 optimizer.eps=1e-6"
        fields = {field.split("=")[0]: field for field in f"{always} {self.fields}".split()}
        return load_recipe(str(self.root.parent / "recipe.yaml"), [f"trainer.{field}" for field in fields.values()])


def main() -> None:
    root, chains = Path(sys.argv[1]), sys.argv[2:]
    (root / "recipe.yaml").write_text(RECIPE)
    prepare(threads=1)
    import gagar_mcore.trainer.checkpoint
    import gagar_mcore.trainer.policy  # noqa: F401  (once, for all ranks)

    stages = [Stage(root / chain, place, fields) for chain in chains for place, fields in enumerate(CHAINS[chain])]
    for size, of_size in groupby(stages, key=lambda stage: stage.recipe.trainer.world_size):
        start_ranks(size, run_stages, list(of_size))


def run_stages(stages: list[Stage]) -> None:
    for stage in stages:
        stage.root.mkdir(exist_ok=True)
        results = refusals(stage) if stage.root.name == REFUSALS else run_stage(stage)
        if dist.get_rank() == 0:
            torch.save(results, stage.root / f"{stage.place}.pt")


def run_stage(stage: Stage) -> dict[str, Any]:
    from gagar_mcore.trainer.checkpoint import load_checkpoint
    from gagar_mcore.trainer.sharded_state import sharded_state

    recipe = stage.recipe
    change_layout(recipe.trainer)
    policy = fresh_policy(stage.family, recipe)
    if stage.place == 0:
        take_steps(policy, recipe, 1, SAVED)
        torch.manual_seed(7)
    else:
        assert load_checkpoint(policy, RunLayout(stage.root / f"{stage.place - 1}")) == SAVED
    random = torch.get_rng_state()
    visible = save_while_training(policy, recipe, RunLayout(stage.root / f"{stage.place}"))
    room = storage_bytes(sharded_state(policy, with_random=False, is_loading=True)["optimizer"])
    return {"random": random, "visible while training": visible, "weights": whole_weights(policy), "room to load": room}


def storage_bytes(state: dict[Any, Any]) -> int:
    """Of the memory behind the sharded tensors of a nested state."""
    nested, storages = [state], {}
    while nested:
        value = nested.pop()
        if isinstance(value, dict):
            nested += value.values()
        elif isinstance(tensor := getattr(value, "data", None), torch.Tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def save_while_training(policy: Any, recipe: Recipe, run: RunLayout) -> bool:
    """Take a third step before anything of the state after the second is written; whether it was visible by then."""
    from gagar_mcore.trainer.checkpoint import CheckpointWriter

    writer = CheckpointWriter(run, Fence(run, 1), recipe.trainer)
    with writing_held_back():
        writer.save(policy, SAVED)
        take_steps(policy, recipe, SAVED + 1, SAVED + 1)
        writer.raise_failure()
        visible = run.checkpoint(SAVED).exists()
    writer.wait()
    return visible


@contextmanager
def writing_held_back() -> Iterator[None]:
    """Threads that begin to write a checkpoint within wait for its end."""
    from gagar_mcore.trainer.staging import Staged

    ended, write = Event(), Staged.write

    def write_later(self: Staged, *arguments: Any) -> None:
        assert ended.wait(60)
        write(self, *arguments)

    Staged.write = write_later
    try:
        yield
    finally:
        Staged.write = write
        ended.set()


def refusals(stage: Stage) -> dict[str, Any]:
    from gagar_mcore.trainer.checkpoint import CheckpointWriter

    run, recipe = RunLayout(stage.root / "run"), stage.recipe
    change_layout(recipe.trainer)
    policy = fresh_policy(stage.family, recipe)
    writer = CheckpointWriter(run, Fence(run, 1), recipe.trainer)
    writer.save(policy, SAVED)
    writer.wait()
    said: dict[str, Any] = {name: damaged(run, damage, kept=True) for name, damage in DAMAGES.items()}
    said["batches gone"] = damaged(run, flip_a_bit, kept=False)
    said["another model"] = outcome(fresh_policy("qwen3_moe", recipe), run)
    said["weights alone"] = foreign(policy, RunLayout(stage.root / "alone"), {"model_only": True, "precision": "bf16"})
    said["another version"] = foreign(policy, RunLayout(stage.root / "other"), {"model": {}, "layout": {}})
    said["frozen before"] = thawed(stage, recipe)
    said["a rank cannot write"] = failing_save(policy, writer, 6, lambda: block_a_rank(run))
    said["too slow"] = slow_save(policy, recipe, RunLayout(stage.root / "slow"))
    said["fenced"] = failing_save(policy, writer, 8, lambda: open_later_epoch(run))
    said["left"] = sorted(path.name for path in run.checkpoint(SAVED).parent.iterdir())
    return said


def change_layout(trainer: TrainerSection) -> None:
    """Build Megatron's groups, in place of those there are; the first call starts the process group."""
    from megatron.core import parallel_state

    if not dist.is_initialized():
        return join(trainer)
    parallel_state.destroy_model_parallel()
    build_groups(trainer)


def fresh_policy(family: str, recipe: Recipe) -> Any:
    from gagar_mcore.trainer.setup import build_policy
    from gagar_mcore.trainer.shards import load_tensors

    policy = build_policy(MODELS[family], recipe.trainer)
    load_tensors(policy.chunks, MODELS[family], telling_tensors(MODELS[family]))
    return policy


def outcome(policy: Any, run: RunLayout) -> str:
    from gagar_mcore.trainer.checkpoint import load_checkpoint

    return error_of(lambda: load_checkpoint(policy, run))


def damaged(run: RunLayout, damage: Callable[[Path], object], kept: bool) -> str:
    """What a restart logs and takes where the newest checkpoint is damaged, and the batch after the older one is kept or not."""
    from gagar_mcore.trainer.checkpoint_records import log, newest_whole

    copy = RunLayout(run.root.with_name(f"{damage.__name__}, {kept}"))
    if dist.get_rank() == 0:
        shutil.copytree(run.root, copy.root)
        shutil.copytree(run.checkpoint(SAVED), copy.checkpoint(SAVED + 2))
        damage(copy.checkpoint(SAVED + 2))
        if kept:
            publish_directory(copy.batch(SAVED + 1), "batch", 1, lambda directory: {})
    dist.barrier()
    log.addHandler(logged := BufferingHandler(capacity=100))
    taken = error_of(lambda: newest_whole(copy))
    log.removeHandler(logged)
    return "\n".join([*(record.getMessage() for record in logged.buffer), taken])


def flip_a_bit(checkpoint: Path) -> None:
    shard = checkpoint / "__1_0.distcp"
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])


def cut_a_file(checkpoint: Path) -> None:
    shard = checkpoint / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])


def lose_a_file(checkpoint: Path) -> None:
    (checkpoint / ".metadata").unlink()


def lose_the_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()


DAMAGES = {damage.__name__: damage for damage in (flip_a_bit, cut_a_file, lose_a_file, lose_the_manifest)}


def foreign(policy: Any, run: RunLayout, meta: dict[str, Any]) -> str:
    """What is said of a checkpoint of which the manifest says `meta`."""
    if dist.get_rank() == 0:
        publish_directory(run.checkpoint(SAVED), "checkpoint", 0, lambda directory: meta)
    dist.barrier()
    return outcome(policy, run)


def thawed(stage: Stage, recipe: Recipe) -> str:
    """What is said where the router was frozen when the checkpoint was saved, and is no longer."""
    from gagar_mcore.trainer.checkpoint import CheckpointWriter

    run = RunLayout(stage.root / "frozen")
    frozen = recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update={"freeze_router": True})})
    writer = CheckpointWriter(run, Fence(run, 1), frozen.trainer)
    writer.save(fresh_policy(stage.family, frozen), SAVED)
    writer.wait()
    return outcome(fresh_policy(stage.family, recipe), run)


def failing_save(policy: Any, writer: Any, step: int, hinder: Callable[[], object]) -> list[str]:
    """What the ranks raise where something comes between the copy and the publishing."""
    with writing_held_back():
        writer.save(policy, step)
        if dist.get_rank() == 0:
            hinder()
        dist.barrier()
    said: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(said, error_of(writer.wait))
    return said


def slow_save(policy: Any, recipe: Recipe, run: RunLayout) -> str:
    """What is raised where nothing is written in time."""
    from gagar_mcore.trainer.checkpoint import CheckpointWriter

    writer = CheckpointWriter(run, Fence(run, 1), recipe.trainer.model_copy(update={"step_timeout_s": 0.5}))
    with writing_held_back():
        writer.save(policy, SAVED)
        said = error_of(writer.wait)
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join(60)
    return said


def error_of(call: Callable[[], object]) -> str:
    """What it returns, where it raises nothing."""
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def block_a_rank(run: RunLayout) -> None:
    """The file that rank 1 is about to write cannot be opened."""
    (temporary,) = run.checkpoint(SAVED).parent.glob(".*.tmp")
    (temporary / "__1_0.distcp").mkdir()


def open_later_epoch(run: RunLayout) -> None:
    for _ in range(2):
        open_epoch(run, next_step=1, next_version=0)


def take_steps(policy: Any, recipe: Recipe, first: int, last: int) -> None:
    from gagar_mcore.trainer.policy import apply_batch

    for step in range(first, last + 1):
        apply_batch(policy, random_batch(step, SEQUENCES), recipe, step)


def whole_weights(policy: Any) -> dict[str, torch.Tensor]:
    from gagar_mcore.trainer.shards import gather_tensors, local_tensors

    return {name: tensor.clone() for name, tensor in gather_tensors(local_tensors(policy.chunks), policy.model)}


if __name__ == "__main__":
    main()
