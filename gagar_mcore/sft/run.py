"""`gagar sft`: from conversations or demonstrations to a checkpoint, measured on the way."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.machine import check_machine
from gagar_mcore.launcher.local import ManagedProcess, ProcessFailed, rank_environment
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import MANIFEST
from gagar_mcore.sft.answers import equal_share, evaluate_answers
from gagar_mcore.sft.evaluate import evaluate_checkpoint
from gagar_mcore.sft.follow import Evaluation, Follower
from gagar_mcore.sft.loop import weights_after
from gagar_mcore.sft.start import check_start, own_run, prepare_data, starting_point
from gagar_mcore.sft.verdicts import verdict_agreement
from gagar_mcore.sft.zero_config import zero_environment
from gagar_mcore.tracking.metrics import scan_metrics
from gagar_mcore.tracking.tracker import open_tracker


def run_sft(name: str, overrides: Sequence[str], resume: bool = False, evaluations: Sequence[Evaluation] = ()) -> None:
    """Train, and measure the weights as the recipe says and by `evaluations`; the checkpoint is `checkpoint/` below the recipe's
    output. Raises RecipeError, ProcessFailed, RecordError, Fenced."""
    recipe = load_recipe(name, overrides)
    check_start(recipe)
    check_machine(recipe)
    with own_run(recipe, resume) as (layout, epoch):
        start = starting_point(recipe, layout, epoch)
        prepare_data(recipe, layout, start, epoch)
        asyncio.run(_train(recipe, layout, start, epoch, [*_evaluations(recipe, layout, start), *evaluations]))
        _conclude(recipe, layout)


def _evaluations(recipe: Recipe, layout: RunLayout, start: Path) -> Iterator[Evaluation]:
    if not recipe.sft.data and recipe.tasks.heldout:
        yield partial(evaluate_checkpoint, recipe, layout)
    if recipe.sft.heldout_answers:
        calls, params = load_renderer(start).calls, recipe.method.params()

        def score(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
            return equal_share(pairs) | verdict_agreement(pairs, calls, params)

        yield partial(evaluate_answers, recipe, layout, score)


async def _train(recipe: Recipe, layout: RunLayout, start: Path, epoch: int, evaluations: Sequence[Evaluation]) -> None:
    tracker = open_tracker(layout.root, recipe.tracking, recipe.name, recipe.model_dump(mode="json"))
    follower = Follower(recipe, layout, tracker, evaluations)
    try:
        with interpreter(recipe) as (python, environment):
            command = [
                *(python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={recipe.trainer.world_size}"),
                *("--max-restarts=0", "-m", "gagar_mcore.sft.train", str(layout.root)),
                *("--init", str(start), "--epoch", str(epoch)),
            ]
            process = await ManagedProcess.start("fine-tuning", command, layout.logs / "sft.log", environment)
            try:
                await follower.follow(process)
            finally:
                await process.stop()
    finally:
        tracker.close()


@contextmanager
def interpreter(recipe: Recipe) -> Iterator[tuple[str, dict[str, str]]]:
    """What runs the ranks, and with which environment, while they run."""
    environment = rank_environment(recipe.trainer.threads)
    if recipe.sft.backend != "deepspeed":
        yield sys.executable, environment
        return
    python = recipe.sft.deepspeed.python or sys.executable
    with zero_environment(Path(python)) as more:
        yield python, environment | more


def _conclude(recipe: Recipe, layout: RunLayout) -> None:
    """Raises ProcessFailed where there is no checkpoint."""
    checkpoint = weights_after(layout, recipe.sft.steps, recipe.sft.steps)
    if not (checkpoint / MANIFEST).is_file():
        raise ProcessFailed(f"fine-tuning ended without a checkpoint; see {layout.logs / 'sft.log'}")
    last = scan_metrics(layout.metrics).steps[recipe.sft.steps]
    rates = {name.removeprefix("eval/"): value for name, value in last.items() if name.startswith("eval/")}
    (layout.root / "evaluation.json").write_text(json.dumps(rates, indent=1))
    print(f"checkpoint in {checkpoint}")
