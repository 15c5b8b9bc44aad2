"""Fused attention of Transformer Engine for one layer. Imported only where it is installed."""

import copy

import torch
from megatron.core.extensions.transformer_engine import TEDotProductAttention
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.packed import PackedSequences


class TECoreAttention(TEDotProductAttention):
    """The counterpart of `PackedCoreAttention`: same arguments, same parameter `softmax_offset`, fused kernels."""

    def __init__(
        self, config: TransformerConfig, model: ModelConfig, layer_number: int, pg_collection: ProcessGroupCollection
    ) -> None:
        super().__init__(
            layer_config(config, model, layer_number - 1),
            layer_number,
            AttnMaskType.padding_causal,
            "self",
            k_channels=model.head_dim,
            v_channels=model.v_head_dim,
            pg_collection=pg_collection,
        )

    def forward(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedSequences) -> Tensor:
        """query `[T, H, d]`, key `[T, G, d]`, value `[T, G, dv]`; returns `[T, H, dv]`."""
        bounds = packed.cu_seqlens_q.to(torch.int32)
        sequences = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=bounds,
            cu_seqlens_kv=bounds,
            max_seqlen_q=packed.max_seqlen_q,
            max_seqlen_kv=packed.max_seqlen_kv,
        )
        context: Tensor = super().forward(query, key, value, None, AttnMaskType.padding_causal, packed_seq_params=sequences)
        return context.view(query.shape[0], -1, value.shape[-1])


def layer_config(config: TransformerConfig, model: ModelConfig, layer: int) -> TransformerConfig:
    """Megatron has one attention for all layers of a model; here each layer is told its own."""
    own = copy.copy(config)
    own.num_query_groups = model.layer_kv_heads(layer)
    own.window_attn_skip_freq = None
    own.window_size = (model.window_keys - 1, 0) if model.is_sliding(layer) else None
    own.softmax_type = "learnable" if model.is_sliding(layer) else "vanilla"
    return own
