"""Mistakes that show only in the files which a recipe names."""

import json
import shutil
from pathlib import Path

import pytest

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.controller.machine import gpus_needed
from gagar_mcore.controller.preflight import preflight
from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.presets import preset
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.task import TaskError
from gagar_mcore.tasks.write import write_task


def test_a_checkpoint_without_a_fit_tokenizer_is_refused(tmp_path: Path) -> None:
    shipped = shipped_checkpoint("tiny-mimo-v2")
    assert shipped is not None
    shutil.copytree(shipped, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"tokenizer\.json"):
        preflight(load_recipe("tiny", [f"model.init={tmp_path / 'model'}"]))


def checkpoint_of(name: str, directory: Path) -> Path:
    """A directory that says it holds the preset `name`, whose weights are those of the tiny model."""
    shipped = shipped_checkpoint("tiny-mimo-v2")
    assert shipped is not None
    shutil.copytree(shipped, directory)
    (directory / "config.json").write_text(json.dumps(to_hf(preset(name))))
    return directory


def test_a_model_that_the_machine_cannot_hold_is_refused_with_the_figures(tmp_path: Path) -> None:
    pro = checkpoint_of("mimo-v2.6-pro", tmp_path / "pro")
    with pytest.raises(RecipeError, match=r"cannot fit.* GB of weights.*machine has") as error:
        preflight(load_recipe("tiny", [f"model.init={pro}"]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("gpu", "layout", "message"),
    [
        ("h200", [], None),
        ("h100", [], None),
        ("h100", ["trainer.ep=16"], r"a rank of pipeline stage \d takes 1\d\d\.\d GB.*one h100 .*trainer.offload_optimizer=true"),
        ("h100", ["trainer.ep=16", "trainer.offload_optimizer=true"], None),
        ("h200", ["trainer.pp=1", "trainer.dp=4"], "trainer: cannot fit"),
    ],
)
def test_a_cluster_decides_by_its_own_gpus(tmp_path: Path, gpu: str, layout: list[str], message: str | None) -> None:
    pro = checkpoint_of("mimo-v2.6-pro", tmp_path / "pro")
    sizes = ["tp=8", "pp=8", "cp=4", "ep=32", "precision=bf16", "recompute=full", "tokens_per_microbatch=16384"]
    fields = [
        f"model.init={pro}",
        f"cluster.gpu={gpu}",
        "rollout.max_context=32768",
        *(f"trainer.{size}" for size in sizes),
        *layout,
    ]
    recipe = load_recipe("tiny", fields)
    if message is None:
        preflight(recipe)
    else:
        with pytest.raises(RecipeError, match=message):
            preflight(recipe)


def test_harbor_tasks_are_read_before_anything_starts(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    for index in range(2):
        write_task(generate_task(1, index), tasks)
    recipe = load_recipe("tiny", ["tasks.source=harbor", f"tasks.path={tasks}", "tasks.heldout_count=1"])
    preflight(recipe)
    shutil.rmtree(next(tasks.iterdir()) / "environment")
    with pytest.raises(TaskError, match="missing: environment/app"):
        preflight(recipe)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.window=before_self", "model.window: before_self, but the embedded engine"),
        ("model.family=qwen3_moe", "model.family: qwen3_moe, but tiny-mimo-v2 is a mimo_v2 model"),
    ],
)
def test_a_model_that_the_recipe_reads_otherwise_is_refused(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        preflight(load_recipe("tiny", [override]))


@pytest.mark.parametrize("name", ["engine", "trainer"])
def test_equal_bits_are_not_promised_on_a_gpu(name: str) -> None:
    with pytest.raises(RecipeError, match=f"{name}.device: cuda does not give equal bits"):
        preflight(load_recipe("tiny", [f"{name}.device=cuda", "deterministic=true"]))


def test_ranks_have_a_gpu_each_and_the_engine_shares_one() -> None:
    one = load_recipe("single-gpu")
    preflight(one)
    assert gpus_needed(one) == 1
    assert gpus_needed(load_recipe("tiny")) == 0
    assert gpus_needed(load_recipe("tiny", ["engine.device=cuda"])) == 1
    assert gpus_needed(load_recipe("tiny", ["trainer.device=cuda"])) == 2
