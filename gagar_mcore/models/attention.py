"""Self-attention for Megatron: per-layer key-value heads, rope base, window and sink, value width unlike key width."""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint, sharded_state_dict_default
from torch import Tensor
from torch.autograd.function import once_differentiable

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.packed import PackedSequences, packed_attention
from gagar_mcore.models.rotary import rotate


@dataclass
class GroupedAttentionSubmodules:
    """Modules of one backend, see `models/backends.py`."""

    linear_qkv: type
    linear_proj: type
    core_attention: type
    norm: type


class GroupedAttention(MegatronModule):
    """Tensor parallel over key-value groups: `linear_qkv` has the rows `[queries | key | value]` of one group after another."""

    def __init__(
        self,
        config: TransformerConfig,
        submodules: GroupedAttentionSubmodules,
        model: ModelConfig,
        layer_number: int,
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        layer = layer_number - 1  # Megatron counts from 1
        self.tp_group = pg_collection.tp
        self.head_dim, self.v_head_dim, self.rotary_dim = model.head_dim, model.v_head_dim, model.rotary_dim
        self.value_scale, self.qk_norm = model.value_scale, model.qk_norm
        self.groups = model.layer_kv_heads(layer) // self.tp_group.size()
        self.queries = model.num_heads // model.layer_kv_heads(layer)
        self.rope_theta = model.sliding_rope_theta if model.is_sliding(layer) else model.rope_theta
        group_rows = (self.queries + 1) * model.head_dim + model.v_head_dim
        shared = {"config": config, "bias": False, "is_expert": False, "tp_group": self.tp_group}
        self.linear_qkv = submodules.linear_qkv(
            config.hidden_size,
            model.layer_kv_heads(layer) * group_rows,
            init_method=config.init_method,
            gather_output=False,
            skip_bias_add=False,
            **shared,
        )
        self.core_attention = submodules.core_attention(config, model, layer_number, pg_collection)
        self.linear_proj = submodules.linear_proj(
            model.num_heads * model.v_head_dim,
            config.hidden_size,
            init_method=config.output_layer_init_method,
            input_is_parallel=True,
            skip_bias_add=True,
            **shared,
        )
        if model.qk_norm:
            self.q_norm, self.k_norm = (submodules.norm(config, model.head_dim, model.norm_eps) for _ in range(2))

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, *, packed_seq_params: PackedSequences, **_: Any
    ) -> tuple[Tensor, Tensor | None]:
        """hidden_states: `[T (over TP under sequence parallelism), 1, hidden]`; the output has the same shape, and no bias."""
        rows, _bias = self.linear_qkv(hidden_states)
        query, key, value = _Split.apply(rows.view(rows.shape[0], self.groups, -1), self.queries, self.head_dim)
        if self.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        table = packed_seq_params.rotary_table(self.rope_theta, self.rotary_dim, self.head_dim)
        query, key = rotate(query, *table).flatten(1, 2), rotate(key, *table)
        context = self.core_attention(query, key, value * self.value_scale, packed_seq_params)
        output: tuple[Tensor, Tensor | None] = self.linear_proj(context.flatten(1).unsqueeze(1))
        return output

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        sharded: dict[str, Any] = {}
        for name, module in self.named_children():
            sharded |= sharded_state_dict_default(module, f"{prefix}{name}.", sharded_offsets, metadata, tp_group=self.tp_group)
        return sharded


class _Split(torch.autograd.Function):
    """rows `[T, G, (queries + 1) * d + dv]` -> query `[T, G, queries, d]`, key `[T, G, d]`, value `[T, G, dv]`; gradients are
    written once."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, queries: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx.shape, ctx.sizes = rows.shape, [queries * head_dim, head_dim, rows.shape[-1] - (queries + 1) * head_dim]
        query, key, value = rows.split(ctx.sizes, dim=-1)
        return query.unflatten(-1, (queries, head_dim)), key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        rows = gradients[0].new_empty(ctx.shape)
        for part, gradient in zip(rows.split(ctx.sizes, dim=-1), gradients, strict=True):
            part.view_as(gradient).copy_(gradient)
        return rows, None, None


class PackedCoreAttention(MegatronModule):
    """Softmax attention of one layer over packed sequences in plain PyTorch, with its sinks, `[heads / TP]`, where it slides."""

    softmax_offset: torch.nn.Parameter | None

    def __init__(
        self, config: TransformerConfig, model: ModelConfig, layer_number: int, pg_collection: ProcessGroupCollection
    ) -> None:
        super().__init__(config=config)
        self.tp_group = pg_collection.tp
        sliding = model.is_sliding(layer_number - 1)
        self.window = model.window_keys if sliding else None
        self.softmax_offset = self._make_sinks(config, model) if sliding else None

    def _make_sinks(self, config: TransformerConfig, model: ModelConfig) -> torch.nn.Parameter:
        sinks = torch.nn.Parameter(torch.zeros(model.num_heads // self.tp_group.size(), dtype=config.params_dtype))
        set_tensor_model_parallel_attributes(sinks, True, 0, 1)
        return sinks

    def forward(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedSequences) -> Tensor:
        """query `[T, H, d]`, key `[T, G, d]`, value `[T, G, dv]`; returns `[T, H, dv]`."""
        return packed_attention(query, key, value, packed, self.window, self.softmax_offset)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        own = self.state_dict(prefix="", keep_vars=True)
        sharded: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            own,
            prefix,
            {"softmax_offset": 0},
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=(metadata or {})["dp_cp_group"],
        )
        return sharded
