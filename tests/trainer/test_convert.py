"""Checkpoints through two ranks to Megatron's format and back, and what the ranks compute from a published one."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ENVIRONMENT, STEPS, TORCHRUN
from safetensors.torch import load_file, save_file
from stored import read_stored
from torch import Tensor
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from gagar_mcore.cli import app
from gagar_mcore.config.conversion import Conversion, Layout
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import from_hf, read_config, to_hf
from gagar_mcore.models.init import random_tensors
from gagar_mcore.models.presets import attention_pattern, preset
from gagar_mcore.models.weight_map import tensor_shapes, weight_rules
from gagar_mcore.records.store import MANIFEST

sys.path.append(str(Path(__file__).parent.with_name("weights")))
from handmade import Handmade, Maker

pytestmark = [pytest.mark.timeout(300), pytest.mark.layouts]  # the first test starts the ranks
MODELS = {
    "mimo": replace(preset("tiny"), mtp_layers=1),
    "qwen": replace(
        preset("qwen3-30b-a3b"),
        vocab_size=128,
        hidden_size=64,
        num_heads=4,
        kv_heads=2,
        sliding_kv_heads=2,
        head_dim=16,
        v_head_dim=16,
        layer_types=attention_pattern(2, range(2)),
        moe_layers=(True, True),
        ffn_size=128,
        moe_ffn_size=32,
        num_experts=4,
        top_k=2,
    ),
}
SPREAD = Layout(tp=2, ep=2)


@pytest.fixture(scope="module")
def flash() -> Handmade:
    return Maker(2, 4, fused=True, mxfp4=False).make()


@pytest.fixture(scope="module")
def root(tmp_path_factory, flash) -> Path:
    """After all conversions: `NAME` is what was published, `NAME-megatron` and `NAME-back` what was made of it."""
    root = tmp_path_factory.mktemp("convert")
    for name, model in MODELS.items():
        write_bf16(root / name, model)
    flash.save(root / "flash")
    torch.save(torch.arange(40) * 7 % 96, root / "tokens.pt")
    exact = SPREAD.model_copy(update={"precision": "fp32"})
    jobs = [
        *there_and_back(root, "mimo", SPREAD, Layout(pp=2, ranks=2), max_file_gb=0.0002),
        *there_and_back(root, "qwen", SPREAD, Layout(ep=2, etp=1)),
        *there_and_back(root, "flash", exact, exact, format="fp8", naming="fused"),
    ]
    (root / "jobs.jsonl").write_text("\n".join(job.model_dump_json() for job in jobs))
    script = Path(__file__).with_name("convert_ranks.py")
    command = [*TORCHRUN, "--nproc-per-node=2", str(script), str(root)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return root


def there_and_back(root: Path, name: str, there: Layout, back: Layout, **how: Any) -> list[Conversion]:
    source, megatron, again = root / name, root / f"{name}-megatron", root / f"{name}-back"
    return [
        Conversion(direction="hf-to-megatron", source=source, target=megatron, companions=source, layout=there),
        Conversion(direction="megatron-to-hf", source=megatron, target=again, companions=megatron, layout=back, **how),
    ]


def write_bf16(directory: Path, model: ModelConfig) -> None:
    read, tensors = random_tensors(model, seed=2), {}
    for name in tensor_shapes(model):
        exact = name.endswith("e_score_correction_bias")
        tensors[name] = torch.linspace(-0.1, 0.1, model.num_experts) if exact else read(name).bfloat16()
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(to_hf(model) | {"eos_token_id": 9}))
    (directory / "tokenizer.json").write_text('{"words": 1}')


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize("name", MODELS)
def test_bf16_comes_back_to_the_bit_through_another_layout(root, name):
    assert_same_bits(read_stored(root / f"{name}-back"), read_stored(root / name))


def test_fused_fp8_comes_back_to_the_bit(root, flash):
    assert_same_bits(read_stored(root / "flash-back"), flash.stored)


@pytest.mark.parametrize("name", [*MODELS, "flash"])
def test_configuration_and_companions_travel(root, name):
    for place in (f"{name}-megatron", f"{name}-back"):
        assert read_config(root / place) == read_config(root / name)
        assert (root / place / "tokenizer.json").read_text() == (root / name / "tokenizer.json").read_text()
        assert (root / place / MANIFEST).is_file()
    config = json.loads((root / f"{name}-back" / "config.json").read_text())
    assert config.get("eos_token_id", config.get("bos_token_id")) in (9, 3)


def test_the_index_names_every_tensor_and_no_file_is_larger_than_asked_for(root):
    back = root / "mimo-back"
    index = json.loads((back / "model.safetensors.index.json").read_text())
    files = {path.name for path in back.glob("*.safetensors")}

    assert set(index["weight_map"].values()) == files and len(files) > 5
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in read_stored(back).values())
    assert index["weight_map"].keys() == read_stored(root / "mimo").keys()
    alone = [path for path in files if len(load_file(back / path)) == 1]
    assert all((back / path).stat().st_size < 200_000 + 20_000 for path in files if path not in alone)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_has_one_parameter_at_a_time_in_its_hands(root, rank):
    there, back, *_ = json.loads((root / f"bytes-{rank}.json").read_text())
    shapes = tensor_shapes(MODELS["mimo"])
    sizes = [2 * sum(torch.Size(shapes[name]).numel() for name in rule.tensors) for rule in weight_rules(MODELS["mimo"])]

    assert there["total"] > 8 * max(sizes) and back["total"] > 5 * max(sizes)
    assert there["peak"] <= max(sizes)
    assert back["peak"] <= 2 * max(sizes)  # as it is, and as it is stored


def test_a_published_checkpoint_gives_the_logits_of_transformers_from_the_dequantised_one(root, flash, tmp_path):
    plain = {name: tensor.float().contiguous() for name, tensor in flash.plain.items()}
    save_file(plain, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(to_hf(from_hf(flash.config))))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(torch.load(root / "tokens.pt")[None]).logits[0]

    assert expected.std() > 0.1
    torch.testing.assert_close(torch.load(root / "logits.pt"), expected, atol=1e-4, rtol=0)


def test_the_command_converts_a_checkpoint_of_a_run_to_the_weights_that_it_published(on_ranks, tmp_path):
    step, published = on_ranks.run.checkpoint(STEPS), on_ranks.run.weights(STEPS)
    arguments = ["convert", "megatron-to-hf", step, tmp_path / "hf", "--companions", published, "--precision", "fp32"]
    result = CliRunner().invoke(app, [*map(str, arguments), "--format", "fp32"])

    assert result.exit_code == 0, result.output
    assert result.output == f"checkpoint in {tmp_path / 'hf'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    assert_same_bits(read_stored(tmp_path / "hf"), read_stored(published))


def refusal(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    return result.output


def test_what_cannot_be_converted_is_refused_before_a_process_starts(root, tmp_path):
    there = ("hf-to-megatron", root / "flash")
    assert f"{root / 'flash'}: exists already" in refusal(*there, root / "flash")
    assert "trainer.tp: 4 does not divide the 2 key-value heads" in refusal(*there, tmp_path / "x", "--tp", 4)
    assert "--ranks: 3 is no multiple of tp * pp = 2" in refusal(*there, tmp_path / "x", "--tp", 2, "--ranks", 3)
    assert "not published" in refusal("megatron-to-hf", root / "flash", tmp_path / "x")
    assert "by --companions" in refusal("megatron-to-hf", tmp_path, tmp_path / "x")
    qwen = ("megatron-to-hf", root / "qwen-megatron", tmp_path / "x")
    assert "naming: checkpoints of qwen3_moe have no fused projections" in refusal(*qwen, "--naming", "fused")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_refused_with_the_reason(root, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in (root / "qwen-megatron").iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    largest = max(damaged.glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)

    assert largest.name in refusal("megatron-to-hf", damaged, tmp_path / "x")
