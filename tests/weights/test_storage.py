import json
from dataclasses import replace
from itertools import chain

import pytest
import torch
from handmade import EXPERTS, Maker, published_config
from safetensors.torch import load_file
from stored import read_stored, stored_bytes, write_tensors
from transformers import AutoConfig

from gagar_mcore.models.huggingface import from_hf
from gagar_mcore.models.init import random_tensors
from gagar_mcore.models.presets import attention_pattern, preset
from gagar_mcore.records.store import file_sum
from gagar_mcore.weights.codecs import TensorSpec
from gagar_mcore.weights.published import open_checkpoint
from gagar_mcore.weights.storage import Storage, quantised_format
from gagar_mcore.weights.stream import plan_files, write_files

CASES = [
    pytest.param(Maker(2, 4, fused=True, mxfp4=True, mtp_layers=1), "mxfp4", "fused", id="flash"),
    pytest.param(Maker(2, 4, fused=False, mxfp4=False), "fp8", "split", id="first flash"),
    pytest.param(Maker(2, 2, fused=True, mxfp4=False), "fp8", "fused", id="pro"),
]


@pytest.mark.parametrize(("maker", "format", "naming"), CASES)
def test_a_published_checkpoint_is_written_again_as_it_was(maker, format, naming, tmp_path):
    made = maker.make()
    checkpoint = made.save(tmp_path / "published")
    model = replace(from_hf(made.config), mtp_layers=maker.mtp_layers)
    again = read_stored(write_tensors(Storage(model, format, naming), open_checkpoint(checkpoint), tmp_path / "again"))

    assert again.keys() == made.stored.keys()
    for name, expected in made.stored.items():
        assert again[name].dtype == expected.dtype, name
        assert torch.equal(again[name].view(torch.uint8), expected.view(torch.uint8)), name


@pytest.mark.parametrize(
    ("format", "naming"), [("fp32", "split"), ("bf16", "fused"), ("fp8", "split"), ("fp8", "fused"), ("mxfp4", "split")]
)
def test_what_is_written_is_read_back_within_the_bounds_of_its_format(format, naming, tmp_path):
    model = replace(
        from_hf(published_config(2, 4)), mtp_layers=1, layer_types=attention_pattern(2, (0,)), moe_layers=(False, True)
    )
    read = random_tensors(model, seed=3)
    storage = Storage(model, format, naming)
    (write_tensors(storage, read, tmp_path) / "config.json").write_text(json.dumps(storage.config({})))

    again = open_checkpoint(tmp_path)
    for name in chain.from_iterable(storage.units()):
        assert_near(again(name), read(name), format, name)


@pytest.mark.parametrize("format", ["fp32", "bf16", "fp8", "mxfp4"])
@pytest.mark.parametrize("naming", ["split", "fused"])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_what_is_decoded_at_once_is_what_is_read_from_files_and_stays_when_stored_again(format, naming, kv_heads, tmp_path):
    layers = {"layer_types": attention_pattern(2, (0,)), "moe_layers": (False, True)}
    model = replace(from_hf(published_config(kv_heads, 4)), mtp_layers=1, **layers)
    read = random_tensors(model, seed=3)
    storage = Storage(model, format, naming)
    (write_tensors(storage, read, tmp_path) / "config.json").write_text(json.dumps(storage.config({})))

    again = open_checkpoint(tmp_path)
    for unit in storage.units():
        decoded = storage.as_read({name: read(name) for name in unit})
        for name, tensor in decoded.items():
            assert torch.equal(tensor, again(name)) and tensor.dtype == again(name).dtype, name
        for name, tensor in storage.as_read(decoded).items():
            assert torch.equal(tensor, decoded[name]), name


@pytest.mark.parametrize(("maker", "format", "naming"), CASES)
def test_the_format_is_found_in_the_configuration(maker, format, naming):
    model = from_hf(maker.made.config)
    assert quantised_format(Storage(model, format, naming).config({})) == format
    assert quantised_format(Storage(model, "bf16", naming).config({})) is None


def assert_near(found: torch.Tensor, weights: torch.Tensor, format: str, name: str) -> None:
    if format == "fp32":
        assert torch.equal(found, weights), name
        return
    error, largest = (found.float() - weights).abs(), weights.abs().amax(-1, keepdim=True)
    if format == "mxfp4" and ".experts." in name:
        assert (error <= largest / 5).all(), name
    elif format != "bf16" and found.dtype == torch.float32 and "bias" not in name:
        assert (error <= torch.maximum(weights.abs() / 16, weights.abs().max() / 448 / 1024)).all(), name
    else:
        assert torch.equal(found, weights.to(found.dtype)), name


def test_only_the_kinds_of_weights_that_are_published_so_are_quantised():
    model = replace(from_hf(published_config(2, 4)), mtp_layers=1)
    storage = Storage(model, "mxfp4", "fused")
    dtypes = {spec.name: spec.dtype for unit in storage.units() for spec in storage.specs(unit)}

    def among(dtype: torch.dtype) -> set[str]:
        return {name.split(".", 3)[-1] for name, of in dtypes.items() if of == dtype}

    assert among(torch.float8_e4m3fn) == {
        "self_attn.qkv_proj.weight",
        "0.self_attn.qkv_proj.weight",
        *(f"{mtp}mlp.{part}_proj.weight" for part in ("gate", "up", "down") for mtp in ("", "0.")),
    }
    experts = [f"mlp.experts.{j}.{part}_proj.weight" for j in range(EXPERTS) for part in ("gate", "up", "down")]
    assert among(torch.uint8) == {*experts, *(f"{name}_scale" for name in experts)}
    plain = storage.config({})["quantization_config"]["ignored_layers"]
    assert {name for name in plain if "layers.3" in name} == {"model.layers.3.self_attn.o_proj", "model.layers.3.mlp.gate"}
    assert {"lm_head", "model.mtp.layers.0.eh_proj"} <= set(plain)


def test_split_checkpoints_are_configured_as_transformers_reads_them_and_keep_what_else_was_told():
    made = Maker(2, 4, fused=True, mxfp4=True).made
    model = from_hf(made.config)
    config = Storage(model, "bf16", "split").config(made.config)

    assert AutoConfig.for_model(**config).layer_types == list(model.layer_types)
    assert from_hf(config) == model
    assert config["bos_token_id"] == 3
    assert "quantization_config" not in config and "hybrid_layer_pattern" not in config
    assert from_hf(Storage(model, "mxfp4", "fused").config(config)) == model
    assert Storage(model, "mxfp4", "fused").config(config)["attention_projection_layout"] == "fused_qkv"


def test_the_announced_bytes_are_those_written(tmp_path):
    model = preset("tiny")
    storage = Storage(model, "fp8", "fused")
    write_tensors(storage, random_tensors(model, seed=1), tmp_path, max_bytes=200_000)

    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.safetensors"))]
    assert len(sizes) > 3
    assert sum(tensor.nbytes for tensor in read_stored(tmp_path).values()) == stored_bytes(model, "fp8")
    assert max(sizes) < 200_000 + 20_000  # and the header


def test_units_larger_than_a_file_get_one_of_their_own():
    specs = [[TensorSpec(name, (size,), torch.uint8)] for name, size in (("a", 5), ("b", 40), ("c", 6), ("d", 4), ("e", 1))]

    assert [[spec.name for spec in file] for file in plan_files(specs, 10)] == [["a"], ["b"], ["c", "d"], ["e"]]


def test_files_are_hashed_as_they_are_written(tmp_path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(3).to(torch.uint8)}
    files = {tmp_path / name: [TensorSpec(name, tuple(tensors[name].shape), tensors[name].dtype)] for name in tensors}

    assert write_files(files, iter(tensors.items())) == {path: file_sum(path) for path in files}
    assert all(torch.equal(load_file(tmp_path / name)[name], tensor) for name, tensor in tensors.items())


def test_a_file_holds_what_was_announced_or_is_an_error(tmp_path):
    announced = [TensorSpec("a", (2,), torch.float32)]
    for tensors, message in (
        ([("b", torch.ones(2))], "name='b'"),
        ([("a", torch.ones(3))], r"shape=\(3,\)"),
        ([], "nothing"),
        ([("a", torch.ones(2)), ("c", torch.ones(1))], "c: was not announced"),
    ):
        with pytest.raises(ValueError, match=message):
            write_files({tmp_path / "x.safetensors": announced}, iter(tensors))


def test_a_configuration_goes_with_the_files_beside_it_and_is_the_same_when_written_again():
    made = Maker(2, 4, fused=True, mxfp4=True).made
    storage = Storage(from_hf(made.config), "bf16")
    before = {"config.json": json.dumps(made.config).encode(), "tokenizer.json": b"{}"}
    after = storage.companions(before)

    assert after["tokenizer.json"] == b"{}"
    assert json.loads(after["config.json"]) == storage.config(made.config)
    assert storage.companions(after) == after


def test_what_cannot_be_stored_so_is_refused():
    qwen, tiny = preset("qwen3-30b-a3b"), preset("tiny")
    with pytest.raises(ValueError, match="naming: checkpoints of qwen3_moe"):
        Storage(qwen, "fp8", "fused")
    with pytest.raises(ValueError, match="multiples of 32"):
        Storage(replace(tiny, moe_ffn_size=48), "mxfp4")
    with pytest.raises(ValueError, match=r"experts\.0\.up_proj\.weight: an entry is not finite"):
        Storage(tiny, "fp8").encode({"model.layers.1.mlp.experts.0.up_proj.weight": torch.full((64, 128), torch.nan)})
