"""A run directory is taken over: lock, recipe, epoch, tasks and the initial weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagar_mcore.config.load import RecipeError, dump_recipe, load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.records.epochs import Epoch, Fence, RunLock, min_batch_epoch, open_epoch, read_epochs
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage
from gagar_mcore.records.serialize import from_plain
from gagar_mcore.records.store import MANIFEST, publish_directory, read_manifest, sweep_temporaries, write_file
from gagar_mcore.rollout.carry import Carried
from gagar_mcore.tasks.mix import Place, Position
from gagar_mcore.weights.files import link_checkpoint
from gagar_mcore.weights.hosts import host_id

# What may differ between a run and its continuation: nothing that earlier steps depended on.
CHANGEABLE = (
    *("output", "train.steps", "train.checkpoint_every", "train.eval_every", "tracking", "retention"),
    *("engine.deadline_s", "engine.start_timeout_s", "trainer.step_timeout_s", "trainer.start_timeout_s"),
    "trainer.batch_timeout_s",
    *("rollout.oversample", "rollout.outage_wait_s", "schedule.outage_tasks"),
    *(
        f"trainer.{field}"
        for field in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "tokens_per_microbatch", "recompute", "threads")
    ),
    *("trainer.offload_optimizer", "trainer.park", "trainer.async_checkpoint"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run that this process owns. `next_step` is the first step without a batch; `position` its data position, `carried` the
    groups that the steps before left under way."""

    recipe: Recipe
    layout: RunLayout
    epoch: Epoch
    next_step: int
    position: Position
    carried: list[Carried]

    @property
    def fence(self) -> Fence:
        return Fence(self.layout, self.epoch.number)


@contextmanager
def open_run(recipe: Recipe, resume: bool) -> Iterator[Run]:
    """Own the run directory `recipe.output`: a fresh one, or with `resume` one that an earlier process left.
    Raises RecipeError for a used or unfit directory and Fenced where another process owns it."""
    layout = check_output(recipe, resume)
    layout.root.mkdir(parents=True, exist_ok=True)
    lock = RunLock(layout)
    try:
        sweep_temporaries(layout.root)
        write_file(layout.recipe, dump_recipe(recipe).encode())
        next_step = _first_unpublished(layout)
        epoch = open_epoch(layout, next_step, _first_unapplied(layout))
        _publish_initial_weights(layout, recipe, epoch.number)
        yield Run(recipe, layout, epoch, next_step, *_last_batch(layout, next_step))
    finally:
        lock.release()


def initial_checkpoint(recipe: Recipe) -> Path:
    """The directory that `model.init` names. Raises RecipeError."""
    path = Path(recipe.model.init)
    if (path / "config.json").is_file():
        return path
    if (shipped := shipped_checkpoint(recipe.model.init)) is not None:
        return shipped
    raise RecipeError(f"model.init: {recipe.model.init}: no directory with a config.json, and no shipped checkpoint of that name")


def check_output(recipe: Recipe, resume: bool) -> RunLayout:
    """Where the run lies or will lie. Raises RecipeError for a used directory, or with `resume` for one that does not fit."""
    layout = RunLayout(Path(recipe.output).absolute())
    used = layout.root.is_dir() and any(layout.root.iterdir())
    if not resume:
        if used:
            mend = "continue it with gagar train --resume or set another output=DIR"
            raise RecipeError(f"output: {layout.root} is already used; {mend}")
        return layout
    if not layout.recipe.is_file():
        if layout.lock.is_file():  # killed before the recipe was written: nothing has happened yet
            return layout
        raise RecipeError(f"output: {layout.root} holds no run to resume; start one without --resume")
    before = load_recipe(str(layout.recipe)).model_dump()
    changed = [key for key in _differences(before, recipe.model_dump()) if not key.startswith(CHANGEABLE)]
    if changed:
        raise RecipeError(f"{', '.join(changed)}: differs from the run in {layout.root}; a resumed run keeps it")
    if recipe.train.steps < (taken := _first_unpublished(layout) - 1):
        raise RecipeError(f"train.steps: {recipe.train.steps} is less than the {taken} steps that the run has collected already")
    return layout


def _differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in a:
        if isinstance(a[key], dict):
            found += _differences(a[key], b[key], f"{prefix}{key}.")
        elif a[key] != b[key]:
            found.append(prefix + key)
    return found


def _first_unpublished(layout: RunLayout) -> int:
    """The first step without a batch of a controller that owned the run; older batches may have been deleted."""
    epochs = read_epochs(layout)
    steps = [int(path.parent.parent.name) for path in (layout.root / "steps").glob(f"*/batch/{MANIFEST}")]
    current = [s for s in steps if read_manifest(layout.batch(s), "batch").epoch >= min_batch_epoch(epochs, s)]
    return max(current, default=0) + 1


def _first_unapplied(layout: RunLayout) -> int:
    published = (layout.root / "weights").glob(f"{current_lineage(layout)}-*/{MANIFEST}")
    return max((int(path.parent.name.split("-")[1]) for path in published), default=-1) + 1


def _last_batch(layout: RunLayout, next_step: int) -> tuple[Position, list[Carried]]:
    """What it says of the data position after it, and of the groups that are under way."""
    if next_step == 1:
        return {}, []
    meta = read_manifest(layout.batch(next_step - 1), "batch").meta
    position = {name: from_plain(Place, place) for name, place in meta["next_position"].items()}
    return position, [from_plain(Carried, carried) for carried in meta.get("carried", [])]


def _publish_initial_weights(layout: RunLayout, recipe: Recipe, epoch: int) -> None:
    target = layout.weights(0)
    if (target / MANIFEST).is_file() or _first_unapplied(layout) > 0:
        return
    source = initial_checkpoint(recipe)

    def fill(directory: Path) -> dict[str, Any]:
        link_checkpoint(source, directory)
        return {"version": 0, "host": host_id()}

    target.parent.mkdir(parents=True, exist_ok=True)
    publish_directory(target, "weights", epoch, fill)
