"""Multi-token prediction: layers after the last one, the k-th of which guesses the token k + 1 places on (for drafts).

They learn from the policy and never act on it: hidden states, embeddings and output weights reach them without gradient."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import (
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from gagar_mcore.models.backends import Backend
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.packed import PackedSequences


class MtpBlock(MegatronModule):
    """The `model.mtp_layers` layers, one after another. Lives on the last pipeline stage."""

    def __init__(self, config: TransformerConfig, backend: Backend, model: ModelConfig, vp_stage: int | None) -> None:
        super().__init__(config=config)
        self.layers: Any = torch.nn.ModuleList(
            MtpLayer(config, backend, model, depth, vp_stage) for depth in range(model.mtp_layers)
        )

    def forward(self, hidden: Tensor, embedded: Sequence[Tensor], packed: PackedSequences) -> list[Tensor]:
        """hidden `[T (over TP), 1, hidden]`: the model's final hidden states. embedded: for each depth k, from 1, the
        embeddings of the tokens k places on, of the same shape. Returns the hidden states of each depth."""
        hiddens = []
        for layer, embeddings in zip(self.layers, embedded, strict=True):
            hidden = layer(hidden, embeddings, packed)
            hiddens.append(hidden)
        return hiddens

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        sharded: dict[str, Any] = {}
        for depth, layer in enumerate(self.layers):
            sharded |= layer.sharded_state_dict(f"{prefix}layers.{depth}.", sharded_offsets, metadata)
        return sharded


class MtpLayer(MegatronModule):
    """Norms of token and hidden state, their joint projection, one dense sliding layer, a final norm."""

    def __init__(self, config: TransformerConfig, backend: Backend, model: ModelConfig, depth: int, vp_stage: int | None) -> None:
        super().__init__(config=config)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        offset = get_transformer_layer_offset(config, vp_stage, groups.pp.rank())
        self.enorm, self.hnorm, self.final_layernorm = (
            backend.norm(config, config.hidden_size, config.layernorm_epsilon) for _ in range(3)
        )
        self.eh_proj = backend.provider.column_parallel_linear()(
            2 * config.hidden_size,
            config.hidden_size,
            config=config,
            init_method=config.init_method,
            gather_output=False,
            bias=False,
            skip_bias_add=False,
            is_expert=False,
            tp_group=groups.tp,
        )
        self.transformer_layer = build_module(
            backend.layer_spec(model, moe=False),
            config=config,
            layer_number=model.num_layers + depth + 1 - offset,  # Megatron adds the offset of the stage
            pg_collection=groups,
            vp_stage=vp_stage,
        )

    @property
    def mtp_model_layer(self) -> Any:
        """As Megatron's schedules call the transformer layer from 0.19 on."""
        return self.transformer_layer

    def forward(self, hidden: Tensor, embeddings: Tensor, packed: PackedSequences) -> Tensor:
        joined = torch.cat([self.enorm(embeddings), self.hnorm(hidden)], dim=-1)
        projected, _bias = self.eh_proj(joined)
        projected = gather_from_tensor_model_parallel_region(projected)
        if self.config.sequence_parallel:
            projected = scatter_to_sequence_parallel_region(projected)
        hidden, _context = self.transformer_layer(projected, attention_mask=None, packed_seq_params=packed)
        output: Tensor = self.final_layernorm(hidden)
        return output


@torch.no_grad()
def embed(weight: Tensor, tokens: Tensor, sequence_parallel: bool) -> Tensor:
    """Embeddings `[T (over TP under sequence parallelism), 1, hidden]` of tokens `[T]`; weight: this rank's rows."""
    first = parallel_state.get_tensor_model_parallel_rank() * len(weight)
    local = tokens - first
    own = (local >= 0) & (local < len(weight))
    rows = (weight[local.clamp(0, len(weight) - 1)] * own[:, None])[:, None]
    reduce = reduce_scatter_to_sequence_parallel_region if sequence_parallel else reduce_from_tensor_model_parallel_region
    embedded: Tensor = reduce(rows)
    return embedded


@torch.no_grad()
def embedding_of_first_stage(weight: Tensor | None, like: Tensor) -> Tensor:
    """The input embedding's shard, sent from the first pipeline stage (`weight`) to the last, where it is returned. `like`: a
    tensor of its shape. A collective of the two stages."""
    if parallel_state.get_pipeline_model_parallel_world_size() == 1:
        assert weight is not None
        return weight
    received = torch.empty_like(like) if weight is None else weight
    group = parallel_state.get_embedding_group()
    dist.broadcast(received, dist.get_process_group_ranks(group)[0], group=group)
    return received
