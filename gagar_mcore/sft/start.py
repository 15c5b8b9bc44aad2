"""What a fine-tuning begins with: a recipe that fits, a directory of its own, a checkpoint, data."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.load import RecipeError, dump_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.preflight import fitting, initial_model
from gagar_mcore.controller.run import check_output, initial_checkpoint
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.presets import PRESETS, preset
from gagar_mcore.records.epochs import RunLock, open_epoch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import MANIFEST, publish_directory, read_manifest, sweep_temporaries, write_file
from gagar_mcore.sft.build import fill_random_start
from gagar_mcore.sft.data import KIND
from gagar_mcore.sft.sequences import fill_once, fill_training
from gagar_mcore.sft.train import DATA, HELDOUT, sft_trainer


def check_start(recipe: Recipe) -> None:
    """Raises RecipeError where the recipe contradicts itself, layout or machine do not fit the model, or its checkpoint is not
    whole."""
    if contradictions := "; ".join(recipe.sft.contradictions(recipe.trainer)):
        raise RecipeError(contradictions)
    trained = recipe.model_copy(update={"trainer": sft_trainer(recipe)})
    if recipe.sft.backend == "deepspeed":
        _check_interpreter(recipe.sft.deepspeed.python)
        _check_checkpoint(initial_checkpoint(recipe))
    elif recipe.model.init == "random":
        fitting(trained, fresh_model(recipe))
    else:
        initial_model(trained)


def fresh_model(recipe: Recipe) -> ModelConfig:
    if recipe.model.preset is None:
        raise RecipeError(f"model.preset: required where model.init is random; choose one of {', '.join(PRESETS)}")
    return preset(recipe.model.preset)


@contextmanager
def own_run(recipe: Recipe, resume: bool) -> Iterator[tuple[RunLayout, int]]:
    """The run directory, which no other process writes meanwhile, and the number of this epoch. Raises RecipeError for a used or
    unfit directory, and Fenced where another process owns it."""
    root = Path(recipe.output).absolute()
    if not resume and root.is_dir() and any(root.iterdir()):
        raise RecipeError(f"output: {root} is already used; continue it with gagar sft --resume or set another output=DIR")
    layout = check_output(recipe, resume)
    layout.root.mkdir(parents=True, exist_ok=True)
    lock = RunLock(layout)
    try:
        sweep_temporaries(layout.root)
        write_file(layout.recipe, dump_recipe(recipe).encode())
        yield layout, open_epoch(layout, next_step=1, next_version=1).number
    finally:
        lock.release()


def starting_point(recipe: Recipe, layout: RunLayout, epoch: int) -> Path:
    """The checkpoint to go on from, or a fresh directory with configuration and tokenizer where `model.init` is `random`."""
    if recipe.model.init != "random":
        return initial_checkpoint(recipe).absolute()
    start = layout.root / "start"
    if not (start / MANIFEST).is_file():
        publish_directory(start, "sft-start", epoch, partial(fill_random_start, model=fresh_model(recipe), section=recipe.sft))
    return start


def prepare_data(recipe: Recipe, layout: RunLayout, start: Path, epoch: int) -> None:
    """Render what is learnt from and what is held out, where that is not done yet. Raises DataError, and RecipeError for a
    sequence that is too long."""
    section, renderer = recipe.sft, load_renderer(start)
    wanted: dict[str, Any] = {DATA: partial(fill_training, section=section, renderer=renderer, seed=recipe.seed)}
    if section.heldout:
        wanted[HELDOUT] = partial(fill_once, files=section.heldout, renderer=renderer, per_step=section.sequences_per_step)
    for name, fill in wanted.items():
        path = layout.root / name
        if not (path / MANIFEST).is_file():
            publish_directory(path, KIND, epoch, fill)
        meta = read_manifest(path, KIND).meta
        print(f"{name}: {meta['sequences']} sequences, {meta['tokens']} tokens", flush=True)
        _check_length(f"sft.{name}", meta["longest"], recipe.trainer, start)


def _check_interpreter(python: str | None) -> None:
    mend = "name a Python that has, such as .venv-deepspeed/bin/python, which make deepspeed makes"
    if python is None and find_spec("deepspeed") is None:
        raise RecipeError(f"sft.deepspeed.python: not given, and {sys.executable} has no DeepSpeed; {mend}")
    if python is not None and not Path(python).is_file():
        raise RecipeError(f"sft.deepspeed.python: {python}: no such file; {mend}")


def _check_length(field: str, longest: int, trainer: TrainerSection, start: Path) -> None:
    limit = trainer.max_tokens_per_sequence
    if limit is not None and limit < longest:
        if trainer.overlong == "refuse":
            raise RecipeError(
                f"trainer.max_tokens_per_sequence: {limit}, but the longest of {field} has {longest} tokens; raise it"
            )
        longest = limit
    positions = json.loads((start / "config.json").read_text()).get("max_position_embeddings", longest)
    if longest > positions:
        raise RecipeError(
            f"{field}: the longest sequence has {longest} tokens, but the model {positions} positions; leave it out, or set "
            f"trainer.max_tokens_per_sequence={positions} trainer.overlong=truncate in another output"
        )


def _check_checkpoint(directory: Path) -> None:
    """Whether transformers could load it, as far as its small files tell."""
    try:
        tokens = load_renderer(directory).vocab_size
        known = json.loads((directory / "config.json").read_text()).get("vocab_size", tokens)
    except ValueError as error:
        raise RecipeError(f"model.init: {error}") from error
    if tokens > known:
        raise RecipeError(f"model.init: {directory}: a tokenizer of {tokens} tokens, but a model of {known}")
    if not any(directory.glob("*.safetensors")):
        raise RecipeError(f"model.init: {directory}: holds no safetensors file; name a checkpoint in Hugging Face format")
