import pytest
import torch
from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.parameters import active_parameters, attention_parameters, count_parameters, fp8_scales
from gagar_mcore.models.presets import PRESETS, preset

# Published totals of the checkpoints.
FLASH, FLASH_MTP = 308_778_780_864, 987_820_224
PRO, PRO_MTP, PRO_SCALES, PRO_CHECKPOINT = 1_021_248_126_336, 1_934_715_264, 61_877_376, 1_023_244_718_976


@pytest.mark.parametrize("name", ["mimo-v2-flash", "mimo-v2.6-flash"])
def test_flash_counts_as_published(name):
    count = count_parameters(preset(name))
    assert (count.model, count.mtp) == (FLASH, FLASH_MTP)
    assert active_parameters(preset(name)) == pytest.approx(15.4e9, rel=5e-3)


def test_pro_counts_as_published():
    model = preset("mimo-v2.6-pro")
    count = count_parameters(model)
    assert (count.model, count.mtp, fp8_scales(model)) == (PRO, PRO_MTP, PRO_SCALES)
    assert count.model + count.mtp + fp8_scales(model) == PRO_CHECKPOINT
    assert active_parameters(model) == pytest.approx(41.9e9, rel=5e-3)


def test_the_count_is_what_an_independent_implementation_holds():
    tiny = preset("tiny")
    theirs = MiMoV2FlashForCausalLM(MiMoV2FlashConfig(**to_hf(tiny)))
    ours = count_parameters(tiny)
    bias = sum(buffer.numel() for name, buffer in theirs.named_buffers() if "correction_bias" in name)
    assert ours.model == sum(parameter.numel() for parameter in theirs.parameters()) + bias
    attention = sum(p.numel() for name, p in theirs.named_parameters() if "layers.1.self_attn" in name)
    assert attention_parameters(tiny, sliding=True) == attention


def test_qwen3_counts_as_an_independent_implementation_on_the_meta_device():
    model = preset("qwen3-30b-a3b")
    with torch.device("meta"):
        theirs = Qwen3MoeForCausalLM(Qwen3MoeConfig(**to_hf(model)))
    assert count_parameters(model).model == sum(parameter.numel() for parameter in theirs.parameters()) == 30_532_122_624


def test_mini_leaves_room_on_an_80_gb_gpu():
    """bf16 weights, fp32 gradients, fp32 master weights and two Adam moments: 18 bytes a parameter."""
    assert 18 * count_parameters(preset("mini")).model < 40e9


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_consistent(name):
    model = preset(name)
    assert len(model.moe_layers) == model.num_layers
    assert model.num_heads % model.kv_heads == model.num_heads % model.sliding_kv_heads == 0
    assert model.rotary_dim % 2 == 0 and not (model.family == "mimo_v2" and model.moe_layers[0])
