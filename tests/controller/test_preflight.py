"""Mistakes that show only in the files which a recipe names."""

import shutil
from pathlib import Path

import pytest

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.controller.preflight import preflight
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


def test_harbor_tasks_are_read_before_anything_starts(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    for index in range(2):
        write_task(generate_task(1, index), tasks)
    recipe = load_recipe("tiny", ["tasks.source=harbor", f"tasks.path={tasks}", "tasks.heldout_count=1"])
    preflight(recipe)
    shutil.rmtree(next(tasks.iterdir()) / "environment")
    with pytest.raises(TaskError, match="missing: environment/app"):
        preflight(recipe)
