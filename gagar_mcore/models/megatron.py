"""The policy as a Megatron GPT model: transformer configuration and layer specifications."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from gagar_mcore.models.backends import Backend
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.experts import keep_order
from gagar_mcore.models.mtp import MtpBlock


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the model-parallel groups; tensor parallelism brings sequence parallelism with it.

    stages: layers of each part of the pipeline in the order that data passes them, several times `pp` of them where stages
    interleave; empty without a pipeline."""

    tp: int = 1
    ep: int = 1
    etp: int = 1
    cp: int = 1
    pp: int = 1
    stages: tuple[int, ...] = ()

    @property
    def chunks(self) -> int:
        """Parts of the pipeline on one rank."""
        return max(len(self.stages) // self.pp, 1)


@dataclass(frozen=True, slots=True)
class Execution:
    """How a model runs, whatever its layout; the recipe's section `trainer` says what each means."""

    precision: Literal["fp32", "bf16"] = "fp32"
    fp8: Literal["none", "delayed", "tensorwise", "blockwise", "mxfp8"] = "none"
    recompute: Literal["none", "selective", "full"] = "none"
    router_bias_update_rate: float = 0.0

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


def transformer_config(model: ModelConfig, parallelism: Parallelism, execution: Execution, backend: Backend) -> TransformerConfig:
    """Losses are sums, so gradients are summed over ranks and micro-batches, never averaged. Raises ValueError where `execution`
    needs Transformer Engine and `backend` is another."""
    fused = backend.fused
    if execution.fp8 != "none" and not fused:
        raise ValueError("trainer.fp8: needs Transformer Engine and a GPU; install gagar-mcore[gpu] or set trainer.fp8=none")
    return TransformerConfig(
        **_recomputation(execution, fused),
        **_fp8(execution),
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_size,
        num_attention_heads=model.num_heads,
        num_query_groups=model.kv_heads,
        kv_channels=model.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        num_moe_experts=model.num_experts,
        moe_ffn_hidden_size=model.moe_ffn_size,
        moe_layer_freq=[int(moe) for moe in model.moe_layers],
        moe_router_topk=model.top_k,
        moe_router_topk_scaling_factor=model.routed_scaling,
        moe_router_score_function=model.router_scores,
        moe_router_enable_expert_bias=model.selection_bias,
        moe_router_bias_update_rate=execution.router_bias_update_rate,
        moe_router_load_balancing_type="none",
        moe_router_dtype="fp32",
        moe_token_dispatcher_type="alltoall",
        moe_grouped_gemm=fused,
        moe_permute_fusion=fused,
        tensor_model_parallel_size=parallelism.tp,
        sequence_parallel=parallelism.tp > 1,
        expert_model_parallel_size=parallelism.ep,
        expert_tensor_parallel_size=parallelism.etp,
        context_parallel_size=parallelism.cp,
        pipeline_model_parallel_size=parallelism.pp,
        virtual_pipeline_model_parallel_size=parallelism.chunks if parallelism.chunks > 1 else None,
        pipeline_model_parallel_layout=_pipeline_layout(parallelism.stages),
        variable_seq_lengths=parallelism.pp > 1,
        overlap_p2p_comm=parallelism.chunks > 1,
        batch_p2p_comm=parallelism.chunks == 1,
        bf16=execution.precision == "bf16",
        params_dtype=execution.dtype,
        pipeline_dtype=execution.dtype,
        perform_initialization=False,
        use_cpu_initialization=not torch.cuda.is_available(),
        transformer_impl="transformer_engine" if fused else "local",
        gradient_accumulation_fusion=False,
        deallocate_pipeline_outputs=False,
        calculate_per_token_loss=True,
    )


def _recomputation(execution: Execution, fused: bool) -> dict[str, Any]:
    """Attention keeps no scores in either backend; grouped experts can drop their activations alone."""
    match execution.recompute:
        case "none":
            return {}
        case "selective":
            modules = ["moe_act", "layernorm"] if fused else ["moe"]
            return {"recompute_granularity": "selective", "recompute_modules": modules}
        case "full":
            return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def _fp8(execution: Execution) -> dict[str, Any]:
    if execution.fp8 == "none":
        return {}
    return {"fp8": "hybrid" if execution.fp8 in ("delayed", "tensorwise") else "e4m3", "fp8_recipe": execution.fp8}


def _pipeline_layout(stages: Sequence[int]) -> list[list[str]] | None:
    if not stages:
        return None
    layout = [["decoder"] * layers for layers in stages]
    layout[0].insert(0, "embedding")
    layout[-1].append("loss")
    return layout


class PolicyModel(GPTModel):
    """Ends with the hidden states, on the last stage the final ones: `output_layer` makes logits of them, `ops.logprob`
    log-probs without logits."""

    def _postprocess(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states


def build_model(model: ModelConfig, config: TransformerConfig, backend: Backend, chunk: int = 0) -> PolicyModel:
    """The local shard of the model, weights not yet set; where pipeline stages interleave, part `chunk` of this rank's. Its
    forward pass takes tokens `[1, T]` with `packed_seq_params=packed_sequences(...)` and returns hidden states `[T, 1, hidden]`,
    of which a rank holds `T / TP` under sequence parallelism."""
    chunks = config.virtual_pipeline_model_parallel_size or 1
    rank = parallel_state.get_pipeline_model_parallel_rank()
    layers = [backend.layer_spec(model, model.moe_layers[layer]) for layer in _local_layers(config, rank, chunk)]
    spec = TransformerBlockSubmodules(layer_specs=layers, layer_norm=backend.norm)
    gpt = PolicyModel(
        config,
        spec,
        model.vocab_size,
        model.max_positions,
        pre_process=rank == 0 and chunk == 0,
        post_process=rank == config.pipeline_model_parallel_size - 1 and chunk == chunks - 1,
        position_embedding_type="none",
        vp_stage=chunk if chunks > 1 else None,
    )
    if gpt.post_process and model.mtp_layers:
        gpt.mtp = MtpBlock(config, backend, model, gpt.vp_stage)
    mark_shards(gpt)
    keep_order(gpt)
    for name, parameter in gpt.named_parameters():
        if ".experts." in name:
            # Megatron leaves this set where EP is 1, and then loses the part of the gradient that lies on other TP ranks.
            parameter.allreduce = False
    return gpt


def _local_layers(config: TransformerConfig, rank: int, chunk: int) -> Sequence[int]:
    layout = config.pipeline_model_parallel_layout
    if layout is None:
        return range(config.num_layers)
    layers: list[int] = layout.get_layer_id_list(vp_stage=chunk, pp_rank=rank)
    return layers


def mark_shards(gpt: torch.nn.Module) -> None:
    """Megatron before 0.19 marks sharded weights while it initialises them, which is not done here, and Transformer Engine never
    marks its sinks; a shard without the mark passes for a copy, and its part is lost from the norm of the gradient."""
    for module in gpt.modules():
        if isinstance(module, ColumnParallelLinear | VocabParallelEmbedding):
            shard, dim = module.weight, 0
        elif isinstance(module, RowParallelLinear):
            shard, dim = module.weight, 1
        else:
            shard, dim = getattr(module, "softmax_offset", None), 0
        if isinstance(shard, torch.nn.Parameter) and not hasattr(shard, "tensor_model_parallel"):
            set_tensor_model_parallel_attributes(shard, True, dim, 1)
