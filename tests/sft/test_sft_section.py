"""The trainer's section, as fine-tuning takes it."""

import json
import sys
from pathlib import Path

import pytest
from dense_model import write_conversations, write_dense_checkpoint

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.sft.conversation import DataError
from gagar_mcore.sft.run import run_sft
from gagar_mcore.sft.start import check_start
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


DENSE = ["sft.backend=deepspeed", f"sft.deepspeed.python={sys.executable}", "sft.data=[x.jsonl]", "trainer.tp=1", "trainer.ep=1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sft.data=[]", "sft.data: required where sft.backend=deepspeed"),
        ("sft.deepspeed.offload_weights=true", "sft.deepspeed.offload_weights: needs sft.deepspeed.stage=3"),
        ("trainer.tp=2", "trainer.tp: 2, but DeepSpeed's ranks are data-parallel; set trainer.tp=1"),
        ("trainer.recompute=selective", "trainer.recompute: selective is Megatron's"),
        ("trainer.park=true", "trainer.park: not with sft.backend=deepspeed"),
        ("trainer.optimizer.state_dtype=bf16", "trainer.optimizer.state_dtype: fp32 alone"),
        ("sft.deepspeed.python=/nowhere/python", "sft.deepspeed.python: /nowhere/python: no such file; name a Python that has"),
        ("model.init=nowhere", "model.init: nowhere: no directory with a config.json"),
    ],
)
def test_what_deepspeed_does_not_do_is_refused_with_its_field(change: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        check_start(load_recipe("tiny-sft", [*DENSE, "model.init=tiny-mimo-v2", change]))


def test_a_dense_checkpoint_fits_with_weights_and_a_tokenizer_of_its_size(tmp_path: Path) -> None:
    model = write_dense_checkpoint(tmp_path / "model")
    recipe = load_recipe("tiny-sft", [*DENSE, f"model.init={model}"])
    check_start(recipe)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    with pytest.raises(RecipeError, match="tokens, but a model of 100"):
        check_start(recipe)
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").unlink()
    with pytest.raises(RecipeError, match="holds no safetensors file"):
        check_start(recipe)


def test_a_bad_line_of_the_data_ends_it_before_any_rank_starts_and_a_restart_reads_it_again(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "data.jsonl", 3)
    data.write_text(data.read_text() + "{}\n")
    changes = [f"output={tmp_path / 'run'}", "model.init=tiny-mimo-v2", f"sft.data=[{data}]"]
    for resume in (False, True):
        with pytest.raises(DataError, match=f"{data}: line 4: messages: required and missing"):
            run_sft("tiny-sft", changes, resume)
    with pytest.raises(RecipeError, match="already used; continue it with gagar sft --resume"):
        run_sft("tiny-sft", changes)
    assert not (tmp_path / "run" / "logs").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("trainer.max_tokens_per_sequence=20", "trainer.max_tokens_per_sequence: 20, but the longest of sft.data has"),
        ("trainer.max_tokens_per_sequence=2000", "sft.data: the longest sequence has .* tokens, but the model 1024 positions"),
    ],
)
def test_sequences_that_are_too_long_end_it_before_any_rank_starts(tmp_path: Path, change: str, said: str) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"messages": [{"role": "user", "content": "?" * 1200}, {"role": "assistant", "content": "!"}]}))
    changes = [f"output={tmp_path / 'run'}", "model.init=tiny-mimo-v2", f"sft.data=[{data}]", "rollout.max_context=10", change]
    with pytest.raises(RecipeError, match=said):
        run_sft("tiny-sft", changes)
    assert not (tmp_path / "run" / "logs").exists()
