"""The trainer's section, as fine-tuning takes it."""

import pytest

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.sft.run import run_sft
from gagar_mcore.sft.train import sft_trainer


def test_fine_tuning_has_rates_of_its_own_and_all_else_from_the_recipe():
    changes = ("optimizer.eps=1e-6", "optimizer.state_dtype=bf16", "optimizer.clip_grad=0.5", "optimizer.lr=9", "tp=1", "ep=1")
    recipe = load_recipe("tiny-sft", [f"trainer.{change}" for change in changes])
    trainer = sft_trainer(recipe)

    optimizer = trainer.optimizer
    assert (optimizer.eps, optimizer.state_dtype, optimizer.clip_grad) == (1e-6, "bf16", 0.5)
    assert (optimizer.lr, optimizer.weight_decay) == (recipe.sft.lr, recipe.sft.weight_decay)
    assert trainer.model_copy(update={"freeze_router": True, "optimizer": recipe.trainer.optimizer}) == recipe.trainer
    assert not trainer.freeze_router


def test_what_cannot_fit_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(RecipeError, match="trainer: cannot fit"):
        run_sft("tiny-sft", [f"output={tmp_path / 'run'}", "cluster.gpu=h100", "model.preset=mimo-v2-flash"])
    assert list(tmp_path.iterdir()) == []
