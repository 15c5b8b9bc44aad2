"""Bytes of new weights that engines read, by format; they do not run multi-token prediction."""

from dataclasses import dataclass, replace

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.parameters import count_parameters, fp8_scales

MXFP4_BYTES = 1 / 2 + 1 / 32  # four bits a weight, one byte of scale for 32


@dataclass(frozen=True, slots=True)
class WeightSync:
    """bf16: all weights. fp8: fused QKV, dense networks and experts in FP8 blocks with fp32 scales, the rest bf16. mxfp4: as fp8,
    but experts in MXFP4."""

    bf16: float
    fp8: float
    mxfp4: float


def weight_sync(model: ModelConfig) -> WeightSync:
    model = replace(model, mtp_layers=0)
    count = count_parameters(model)
    outputs = model.num_layers * model.num_heads * model.v_head_dim * model.hidden_size
    sinks = model.num_heads * model.layer_types.count("sliding_attention")
    in_fp8 = count.attention - outputs - sinks + count.dense
    scales = fp8_scales(replace(model, num_experts=0))
    expert_scales = fp8_scales(model) - scales
    others = 2 * (count.model - in_fp8 - count.experts) + in_fp8 + 4 * scales
    return WeightSync(
        bf16=2 * count.model,
        fp8=others + count.experts + 4 * expert_scales,
        mxfp4=others + MXFP4_BYTES * count.experts,
    )
