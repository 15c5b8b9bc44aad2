import json
from pathlib import Path

import pytest
import torch
from handmade import FFN, HIDDEN, KEY, VALUE, Handmade, Maker
from safetensors.torch import load_file, save_file

from gagar_mcore.models.presets import preset
from gagar_mcore.weights.files import TensorFiles
from gagar_mcore.weights.published import PublishedCheckpoint, open_checkpoint
from gagar_mcore.weights.qkv import QkvShards

GLOBAL, SLIDING = "model.layers.3.self_attn", "model.layers.1.self_attn"


def projections(attention: str) -> list[str]:
    return [f"{attention}.{part}_proj.weight" for part in "qkv"]


@pytest.fixture(scope="module")
def flash() -> Handmade:
    """Twice as many key-value heads on sliding layers; fused, MXFP4 experts."""
    return Maker(2, 4, fused=True, mxfp4=True, mtp_layers=2).make()


@pytest.fixture(scope="module")
def first_flash() -> Handmade:
    """Split, all FP8."""
    return Maker(2, 4, fused=False, mxfp4=False).make()


@pytest.fixture(scope="module")
def pro() -> Handmade:
    """As many key-value heads on sliding layers."""
    return Maker(2, 2, fused=True, mxfp4=False).make()


def assert_reads(made: Handmade, directory: Path, names: list[str]) -> None:
    read = open_checkpoint(made.save(directory))
    for name in names:
        assert torch.equal(read(name), made.plain[name]), name


def test_trap_fused_qkv_of_flash_global_layers_is_sharded_and_padded_to_blocks(flash, tmp_path):
    assert flash.stored[f"{GLOBAL}.qkv_proj.weight"].shape == (2 * (3 * KEY + VALUE), HIDDEN)
    assert flash.stored[f"{GLOBAL}.qkv_proj.weight_scale_inv"].shape == (2 * 6, 2)  # 704 rows a shard: 5.5 blocks
    assert_reads(flash, tmp_path, projections(GLOBAL))


def test_trap_fused_qkv_of_flash_sliding_layers_holds_two_heads_a_shard(flash, tmp_path):
    fused = flash.stored[f"{SLIDING}.qkv_proj.weight"]
    assert fused.shape == (2 * (4 * KEY + 2 * VALUE), HIDDEN)
    assert_reads(flash, tmp_path, projections(SLIDING))

    keys = open_checkpoint(tmp_path)(f"{SLIDING}.k_proj.weight")
    second_head_of_first_shard = fused[3 * KEY : 4 * KEY]
    assert torch.equal(torch.signbit(keys[KEY : 2 * KEY]), torch.signbit(second_head_of_first_shard.float()))


def test_trap_fused_qkv_of_pro_has_one_head_a_shard_on_every_layer(pro, tmp_path):
    assert pro.stored[f"{SLIDING}.qkv_proj.weight"].shape == pro.stored[f"{GLOBAL}.qkv_proj.weight"].shape
    assert_reads(pro, tmp_path, projections(GLOBAL) + projections(SLIDING))


def test_trap_split_k_scale_is_padded_and_its_last_block_reaches_into_the_values(first_flash, tmp_path):
    scales = first_flash.stored[f"{GLOBAL}.k_proj.weight_scale_inv"]
    assert scales.shape == (4, 2)  # two a head, where 384 rows have three blocks
    assert_reads(first_flash, tmp_path, projections(GLOBAL) + projections(SLIDING))

    values = open_checkpoint(tmp_path)(f"{GLOBAL}.v_proj.weight")
    stored = first_flash.stored[f"{GLOBAL}.v_proj.weight"].float()
    assert torch.equal(values[:64, :128], stored[:64, :128] * scales[1, 0])


def test_split_projections_that_were_quantised_as_whole_matrices_are_read_too(first_flash, tmp_path):
    made = Handmade(first_flash.config, dict(first_flash.stored), dict(first_flash.plain))
    maker = Maker(2, 4, fused=False, mxfp4=False)
    maker.made = made
    for name, rows in zip(projections(GLOBAL), (4 * KEY, 2 * KEY, 2 * VALUE), strict=True):
        maker.blocked(name, (rows, HIDDEN))

    assert made.stored[f"{GLOBAL}.k_proj.weight_scale_inv"].shape == (3, 2)
    assert_reads(made, tmp_path, projections(GLOBAL))


@pytest.mark.parametrize(
    ("name", "layer", "rows", "fused", "key_scales"),
    [
        ("mimo-v2-flash", 0, 13568, 108, 8),
        ("mimo-v2-flash", 1, 14848, 116, 12),
        ("mimo-v2-flash", 48, 14848, 116, 12),  # multi-token prediction
        ("mimo-v2.6-pro", 0, 27136, 216, 16),
        ("mimo-v2.6-pro", 1, 27136, 216, 16),
    ],
)
def test_the_published_models_have_the_published_shapes(name, layer, rows, fused, key_scales):
    shards = QkvShards.of_layer(preset(name), layer)

    assert shards.count * sum(shards.rows) == rows
    assert shards.count * shards.blocks == fused
    assert shards.count * shards.dealt_blocks[1] == key_scales


@pytest.mark.parametrize("kind", ["flash", "first_flash", "pro"])
def test_every_tensor_of_a_checkpoint_is_read(kind, request, tmp_path):
    made = request.getfixturevalue(kind)
    checkpoint = PublishedCheckpoint(made.save(tmp_path))

    assert checkpoint.check() == set()
    assert checkpoint.shapes.keys() == made.plain.keys()
    assert checkpoint.model.mtp_layers == (2 if kind == "flash" else 0)
    for name, expected in made.plain.items():
        assert torch.equal(checkpoint.read(name), expected), name


def test_of_a_fused_tensor_only_the_rows_asked_for_are_read(flash, tmp_path, monkeypatch):
    read_rows, handed = TensorFiles.read_rows, []

    def counting(self, name, start, stop):
        rows = read_rows(self, name, start, stop)
        handed.append(len(rows))
        return rows

    monkeypatch.setattr(TensorFiles, "read_rows", counting)
    open_checkpoint(flash.save(tmp_path))(f"{SLIDING}.v_proj.weight")
    assert handed == [2 * VALUE, 2 * VALUE]


def damage(directory: Path, **tensors: torch.Tensor | None) -> None:
    """Replace or, with None, remove tensors of a saved checkpoint."""
    stored = load_file(directory / "model.safetensors") | tensors
    save_file({name: tensor for name, tensor in stored.items() if tensor is not None}, directory / "model.safetensors")


FP8 = torch.float8_e4m3fn
FUSED = f"{GLOBAL}.qkv_proj.weight"
EXPERT = "model.layers.1.mlp.experts.3.down_proj.weight"


@pytest.mark.parametrize(
    ("tensor", "replacement", "message"),
    [
        (f"{FUSED}_scale_inv", None, f"holds no tensor {FUSED}_scale_inv, without which"),
        (f"{FUSED}_scale_inv", torch.ones(11, 2), rf"{FUSED}_scale_inv: F32 \[11, 2\], expected F32 \[12, 2\]"),
        (f"{EXPERT}_scale", torch.ones(HIDDEN, 2), rf"{EXPERT}_scale: F32 \[160, 2\], expected U8 \[160, 2\]"),
        (FUSED, torch.ones(1400, HIDDEN), rf"{FUSED}: shape \[1400, 160\], the model of config.json has \[1408, 160\]"),
        (EXPERT, torch.ones(HIDDEN, 64, dtype=torch.int64), f"{EXPERT}: its type I64 is not supported"),
        (EXPERT, None, f"holds no tensor {EXPERT}"),
        ("model.norm.weight", None, "holds no tensor model.norm.weight"),
        (
            "model.layers.4.mlp.gate.weight",
            torch.ones(4, HIDDEN),
            "model.layers.4.mlp.gate.weight: the model of config.json has no",
        ),
    ],
)
def test_what_does_not_fit_is_one_error_with_file_and_tensor(flash, tmp_path, tensor, replacement, message):
    flash.save(tmp_path)
    damage(tmp_path, **{tensor: replacement})

    with pytest.raises(ValueError, match=message) as error:
        PublishedCheckpoint(tmp_path).check()
    assert str(tmp_path) in str(error.value)


def test_an_exponent_that_stands_for_no_number_names_its_tensor(flash, tmp_path):
    flash.save(tmp_path)
    damage(tmp_path, **{f"{EXPERT}_scale": torch.full((HIDDEN, 2), 255, dtype=torch.uint8)})

    with pytest.raises(ValueError, match=rf"model\.safetensors: {EXPERT}: a scale is 255"):
        open_checkpoint(tmp_path)(EXPERT)


NORM = "model.layers.2.input_layernorm.weight"


@pytest.mark.parametrize(
    ("read", "stored", "replacement"),
    [
        (NORM, NORM, torch.full((HIDDEN,), torch.nan).bfloat16()),
        (f"{GLOBAL}.v_proj.weight", f"{FUSED}_scale_inv", torch.full((12, 2), torch.inf)),
        (EXPERT, f"{EXPERT}_scale", torch.full((HIDDEN, 2), 254, dtype=torch.uint8)),  # 6 * 2^127
        ("model.mtp.layers.1.mlp.up_proj.weight",) * 2 + (torch.full((FFN, HIDDEN), 0x7F, dtype=torch.uint8).view(FP8),),
    ],
)
def test_weights_that_are_not_finite_name_their_tensor_and_its_file(flash, tmp_path, read, stored, replacement):
    flash.save(tmp_path)
    damage(tmp_path, **{stored: replacement})

    home = stored.removesuffix("_scale_inv").removesuffix("_scale")
    with pytest.raises(ValueError, match=rf"{tmp_path}/model\.safetensors: {home}: holds weights that are not finite; fetch"):
        open_checkpoint(tmp_path)(read)


def test_the_largest_weights_that_are_numbers_are_read(flash, tmp_path):
    flash.save(tmp_path)
    damage(tmp_path, **{f"{EXPERT}_scale": torch.full((HIDDEN, 2), 252, dtype=torch.uint8)})

    assert open_checkpoint(tmp_path)(EXPERT).abs().max() == 6 * 2.0**125


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{", "\xff"])
def test_what_is_no_index_is_one_error_with_its_file(flash, tmp_path, content):
    flash.save(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content.encode("latin-1"))

    with pytest.raises(ValueError, match=f"^{index}: .*; an index names the file of each tensor: fetch it again$"):
        open_checkpoint(tmp_path)


def test_tensors_beside_the_language_model_are_told_and_left_alone(flash, tmp_path):
    flash.save(tmp_path)
    damage(tmp_path, **{"visual.patch_embed.weight": torch.ones(2, 2)})

    assert PublishedCheckpoint(tmp_path).check() == {"visual.patch_embed.weight"}


def test_a_damaged_file_and_an_incomplete_download_are_named(flash, tmp_path):
    flash.save(tmp_path)
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(
        ValueError, match=r"index\.json: names lm_head\.weight in model-00002-of-00002\.safetensors, which is not"
    ):
        open_checkpoint(tmp_path)

    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00")
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged"):
        open_checkpoint(tmp_path)
