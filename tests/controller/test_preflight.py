"""Mistakes that show only in the files which a recipe names."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_models import chat_tokenizer
from safetensors.torch import load_file, save_file
from stored import write_stored

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.controller.machine import gpus_needed
from gagar_mcore.controller.preflight import fitting, preflight
from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.presets import preset
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.task import TaskError
from gagar_mcore.tasks.write import write_task
from gagar_mcore.weights.files import read_companions
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import Storage


def test_a_checkpoint_without_a_fit_tokenizer_is_refused(tmp_path: Path) -> None:
    shipped = shipped_checkpoint("tiny-mimo-v2")
    assert shipped is not None
    shutil.copytree(shipped, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"tokenizer\.json"):
        preflight(load_recipe("tiny", [f"model.init={tmp_path / 'model'}"]))


def test_a_checkpoint_with_the_special_tokens_of_chat_models_is_accepted(tmp_path: Path) -> None:
    shipped = shipped_checkpoint("tiny-mimo-v2")
    assert shipped is not None
    shutil.copytree(shipped, tmp_path / "model")
    chat_tokenizer().save(str(tmp_path / "model" / "tokenizer.json"))
    assert preflight(load_recipe("tiny", [f"model.init={tmp_path / 'model'}"])) == preflight(load_recipe("tiny"))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    shipped = shipped_checkpoint("tiny-mimo-v2")
    assert shipped is not None
    shutil.copytree(shipped, tmp_path / "model")
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens([f"<extra {index}>" for index in range(512)])
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    with pytest.raises(RecipeError, match=r"tokenizer\.json holds \d+ tokens, but the model has 512"):
        preflight(load_recipe("tiny", [f"model.init={tmp_path / 'model'}"]))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in FP8, fused, in several files."""
    shipped = shipped_checkpoint("tiny-mimo-v2")
    assert shipped is not None
    source = PublishedCheckpoint(shipped)
    directory = tmp_path_factory.mktemp("published")
    return write_stored(Storage(source.model, "fp8", "fused"), source.read, read_companions(shipped), directory, 300_000)


def test_a_checkpoint_as_models_are_published_is_accepted(published: Path) -> None:
    assert preflight(load_recipe("tiny", [f"model.init={published}"])) == preflight(load_recipe("tiny"))


def lose_a_file(checkpoint: Path) -> None:
    max(checkpoint.glob("*.safetensors")).unlink()


def lose_the_scales(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors.index.json").unlink()
    [path] = [path for path in checkpoint.glob("*.safetensors") if DOWN in load_file(path)]
    tensors = load_file(path)
    del tensors[f"{DOWN}_scale_inv"]
    save_file(tensors, path)


def change_the_model(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"moe_intermediate_size": 96}))


def keep_the_tokenizer_only(checkpoint: Path) -> None:
    for path in checkpoint.glob("*.safetensors"):
        path.unlink()


def become_megatrons(checkpoint: Path) -> None:
    keep_the_tokenizer_only(checkpoint)
    (checkpoint / ".metadata").touch()


def lose_the_tokenizer(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()


DOWN = "model.layers.1.mlp.experts.3.down_proj.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_file, r"index\.json: names .* in model-.*, which is not there; fetch the checkpoint again"),
        (lose_the_scales, rf"holds no tensor {DOWN}_scale_inv, without which .*; correct config.json, or fetch"),
        (change_the_model, r"model-.*\.safetensors: model\.layers\.1\.mlp\.experts.*: shape .*; correct config.json, or fetch"),
        (keep_the_tokenizer_only, "holds no safetensors file; name a directory with the weights"),
        (become_megatrons, "it is a checkpoint of Megatron's, of which gagar convert megatron-to-hf makes one"),
        (lose_the_tokenizer, r"tokenizer\.json: no such file"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_refused_with_field_file_and_mend(
    published: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    damaged = shutil.copytree(published, tmp_path / "damaged")
    damage(damaged)
    with pytest.raises(RecipeError, match=f"^model.init: {damaged}.*{message}") as error:
        preflight(load_recipe("tiny", [f"model.init={damaged}"]))
    assert "\n" not in str(error.value)


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
        ("h100", ["trainer.offload_optimizer=true"], None),
        ("h100", ["trainer.ep=16"], r"a rank of pipeline stage \d takes 1\d\d\.\d GB.*one h100 .*trainer.offload_optimizer=true"),
        ("h100", ["trainer.ep=16", "trainer.offload_optimizer=true"], None),
        ("h200", ["trainer.pp=1", "trainer.dp=4"], "trainer: cannot fit"),
    ],
)
def test_a_cluster_decides_by_its_own_gpus(gpu: str, layout: list[str], message: str | None) -> None:
    sizes = ["tp=8", "pp=8", "cp=4", "ep=32", "precision=bf16", "recompute=full", "tokens_per_microbatch=16384"]
    fields = [
        f"cluster.gpu={gpu}",
        "rollout.max_context=32768",
        *(f"trainer.{size}" for size in sizes),
        *layout,
    ]
    recipe, pro = load_recipe("tiny", fields), preset("mimo-v2.6-pro")
    if message is None:
        assert fitting(recipe, pro) == pro
    else:
        with pytest.raises(RecipeError, match=message):
            fitting(recipe, pro)


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
        (("engine.kind=sglang", "publish.format=fp8"), "publish.format: fp8, but model.init is stored in plain weights, .*bf16"),
        ("model.family=qwen3_moe", "model.family: qwen3_moe, but tiny-mimo-v2 is a mimo_v2 model"),
    ],
)
def test_a_model_that_the_recipe_reads_otherwise_is_refused(override: str | tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        preflight(load_recipe("tiny", [override] if isinstance(override, str) else override))


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
