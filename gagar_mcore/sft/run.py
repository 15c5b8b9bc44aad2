"""`gagar sft`: the cold start of a policy, from demonstrations to a checkpoint with its measured pass rate."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.config.load import RecipeError, dump_recipe, load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.machine import check_machine
from gagar_mcore.controller.preflight import fitting, initial_model
from gagar_mcore.controller.run import initial_checkpoint
from gagar_mcore.launcher.local import ManagedProcess, ProcessFailed, log_tail, rank_environment
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.presets import PRESETS, preset
from gagar_mcore.records.store import publish_directory
from gagar_mcore.sft.build import fill_sft_data, write_random_start
from gagar_mcore.sft.data import KIND
from gagar_mcore.sft.evaluate import evaluate_checkpoint
from gagar_mcore.sft.train import sft_trainer

POLL_SECONDS = 0.5


def run_sft(name: str, overrides: Sequence[str]) -> None:
    """Train and evaluate; the checkpoint is `checkpoint/` below the recipe's output. Raises RecipeError, ProcessFailed."""
    recipe = load_recipe(name, overrides)
    check_start(recipe)
    check_machine(recipe)
    root = Path(recipe.output).absolute()
    if root.is_dir() and any(root.iterdir()):
        raise RecipeError(f"output: {root} is already used; set another output=DIR")
    root.mkdir(parents=True, exist_ok=True)
    (root / "recipe.yaml").write_text(dump_recipe(recipe))
    start = starting_point(recipe, root)
    print("writing demonstrations", flush=True)
    publish_directory(root / "data", KIND, 0, partial(fill_sft_data, section=recipe.sft, renderer=load_renderer(start)))
    asyncio.run(_train_and_evaluate(recipe, root, start))


def check_start(recipe: Recipe) -> None:
    """Raises RecipeError where layout or machine do not fit the model, or its checkpoint is not whole."""
    trained = recipe.model_copy(update={"trainer": sft_trainer(recipe)})
    if recipe.model.init == "random":
        fitting(trained, fresh_model(recipe))
    else:
        initial_model(trained)


def fresh_model(recipe: Recipe) -> ModelConfig:
    if recipe.model.preset is None:
        raise RecipeError(f"model.preset: required where model.init is random; choose one of {', '.join(PRESETS)}")
    return preset(recipe.model.preset)


def starting_point(recipe: Recipe, root: Path) -> Path:
    """The checkpoint to go on from, or a fresh directory with configuration and tokenizer where `model.init` is `random`."""
    if recipe.model.init != "random":
        return initial_checkpoint(recipe)
    write_random_start(fresh_model(recipe), recipe.sft, root / "start")
    return root / "start"


async def _train_and_evaluate(recipe: Recipe, root: Path, start: Path) -> None:
    checkpoint = root / "checkpoint"
    await _train(recipe, root, start, checkpoint)
    print(f"checkpoint in {checkpoint}")
    if recipe.tasks.heldout == 0:
        return
    rates = await evaluate_checkpoint(recipe, checkpoint, root)
    (root / "evaluation.json").write_text(json.dumps(rates, indent=1))
    print(f"pass rate {rates['pass_rate']:.3f}, clean among passes {rates['clean_share']:.3f}, {rates['sessions']:.0f} sessions")


async def _train(recipe: Recipe, root: Path, start: Path, checkpoint: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={recipe.trainer.world_size}"),
        *("-m", "gagar_mcore.sft.train", str(root / "recipe.yaml"), "--data", str(root / "data"), "--init", str(start)),
        *("--out", str(checkpoint), "--metrics", str(root / "sft.jsonl")),
    ]
    process = await ManagedProcess.start(
        "fine-tuning", command, root / "logs" / "sft.log", rank_environment(recipe.trainer.threads)
    )
    try:
        await _follow(process, recipe, root / "sft.jsonl")
    finally:
        await process.stop()
    process.check()
    if not (checkpoint / "manifest.json").is_file():
        raise ProcessFailed(f"fine-tuning ended without a checkpoint; see {process.log}")


async def _follow(process: ManagedProcess, recipe: Recipe, metrics: Path) -> None:
    """Show progress until the process ends. Raises ProcessFailed where one step takes longer than the recipe allows."""
    patience = recipe.trainer.start_timeout_s + recipe.trainer.step_timeout_s
    shown, deadline = 0, time.monotonic() + patience
    while process.exit_code is None:
        await asyncio.sleep(POLL_SECONDS)
        before, shown = shown, _show_progress(metrics, shown, recipe.sft.steps)
        if shown > before:
            deadline = time.monotonic() + patience
        if time.monotonic() > deadline:
            raise ProcessFailed(
                f"fine-tuning has made no step for {patience:.0f} s; {process.log} ends:\n{log_tail(process.log)}"
            )


def _show_progress(path: Path, shown: int, steps: int) -> int:
    """Print one line for every fiftieth step that `path` has beyond `shown`; returns how many it has."""
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines[shown:]:
        metrics = json.loads(line)
        if metrics["step"] % 50 == 0:
            rate = metrics["sft/tokens_per_second"]
            print(f"step {metrics['step']}/{steps}  loss {metrics['sft/loss']:.3f}  {rate:.0f} tokens/s", flush=True)
    return len(lines)
