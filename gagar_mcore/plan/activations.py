"""Bytes that activations take on one rank, layer by layer, as the Transformer Engine backend keeps them: attention is fused, so
that scores of queries against keys never exist, and selective recomputation drops norms and the products inside experts.

Counted as Korthikanti et al. 2022 (arxiv.org/abs/2205.05198) count them: tensors that the backward pass reads, in the precision
of training; split over TP along the sequence between the parallel parts of a layer, along heads or rows inside them."""

from dataclasses import dataclass

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.plan.context import context_bytes
from gagar_mcore.plan.states import value_bytes
from gagar_mcore.plan.workload import Workload

LOGITS_CHUNK = 256 << 20  # scratch of gagar_mcore.ops.logprob on a GPU


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of one layer and micro-batch. kept: from forward to backward pass. attention, context, feed_forward: beyond that,
    while the layer is under work. by_experts: the share of `kept` and of `feed_forward` that grows with the experts' load."""

    kept: float
    kept_by_experts: float
    attention: float
    context: float
    feed_forward: float
    by_experts: float


def layer_activations(model: ModelConfig, layout: TrainerSection, work: Workload, layer: int) -> Activations:
    """Balanced experts: each rank gets `top_k` copies of every token it holds."""
    tokens, size = work.tokens_at_once(layout), value_bytes(layout)
    stream = tokens / layout.tp * model.hidden_size * size
    core = tokens * _attention_width(model, layer) / layout.tp * size
    inner = _feed_forward(model, layout, layer, tokens / layout.tp)
    context = context_bytes(model, layout, work, layer)
    moe, whole = model.is_moe(layer), layout.recompute == "full"
    some = layout.recompute == "selective"  # norms, and products inside experts
    kept = inner.inputs + inner.gate_up + (0 if some and moe else inner.product)
    at_once = (2 if whole else 1) * (2 * inner.inputs + inner.gate_up + inner.product)  # gradients, and values computed again
    return Activations(
        kept=stream if whole else (2 if some else 4) * stream + core + context.kept + kept,
        kept_by_experts=kept if moe and not whole else 0.0,
        attention=(2 if whole else 1) * core + (tokens * model.hidden_size * size if layout.tp > 1 else 0),
        context=context.at_work + (context.kept if whole else 0.0),
        feed_forward=at_once,
        by_experts=at_once if moe else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """Bytes inside a feed-forward network: what enters (and leaves) its experts, gate and up, their product."""

    inputs: float
    gate_up: float
    product: float


def _feed_forward(model: ModelConfig, layout: TrainerSection, layer: int, tokens: float) -> _FeedForward:
    size = value_bytes(layout)
    if not model.is_moe(layer):  # the ranks of TP hold all tokens and their share of the rows
        return _FeedForward(0.0, tokens * 2 * model.ffn_size * size, tokens * model.ffn_size * size)
    copies = tokens * model.top_k
    inputs = copies * layout.etp * model.hidden_size * size
    return _FeedForward(inputs, copies * 2 * model.moe_ffn_size * size, copies * model.moe_ffn_size * size)


def passes_in_flight(layout: TrainerSection, stage: int, microbatches: int) -> float:
    """Micro-batches whose activations a stage holds at once, in units of its whole stage: `pp - stage` in the 1F1B schedule, and
    with interleaved chunks one more than its warm-up passes (Narayanan et al. 2021, arxiv.org/abs/2104.04473, as in
    Megatron-Core's schedules)."""
    if layout.vpp == 1:
        return min(microbatches, layout.pp - stage)
    chunks = 2 * (layout.pp - stage - 1) + (layout.vpp - 1) * layout.pp + 1
    return min(microbatches * layout.vpp, chunks) / layout.vpp


def chunked_logits(model: ModelConfig, layout: TrainerSection, work: Workload) -> float:
    """Log-probs without full logits: one chunk, a few bytes a token, hidden states of all tokens and their gradient, and the
    gradient of the output layer in fp32 and in its own precision, as `gagar_mcore.ops.logprob` says."""
    size, weights = value_bytes(layout), model.vocab_size * model.hidden_size / layout.tp
    return LOGITS_CHUNK + _scored(model, layout, work) + weights * (4 if size == 4 else 4 + size)


def mtp_kept(model: ModelConfig, layout: TrainerSection, work: Workload) -> float:
    """Bytes from forward to backward pass on the last stage where multi-token prediction trains. Nothing of its layers is
    computed again; each also keeps what enters its norms and its projection, and what its log-probs take. The input embedding
    comes from the first stage."""
    if layout.mtp == "frozen":
        return 0.0
    layer = layer_activations(model, layout.model_copy(update={"recompute": "none"}), work, model.num_layers)
    stream = work.tokens_at_once(layout) / layout.tp * model.hidden_size * value_bytes(layout)
    embedding = model.vocab_size * model.hidden_size / layout.tp * value_bytes(layout) if layout.pp > 1 else 0.0
    return model.mtp_layers * (layer.kept + 6 * stream + _scored(model, layout, work)) + embedding


def _scored(model: ModelConfig, layout: TrainerSection, work: Workload) -> float:
    """Hidden states of all tokens, their gradient, and a few bytes a token."""
    return work.tokens_at_once(layout) * (64 + 48 * layout.tp + 2 * model.hidden_size * value_bytes(layout))


def full_logits(model: ModelConfig, layout: TrainerSection, work: Workload) -> float:
    """Logits and their gradient in fp32, for comparison: the trainer never holds them."""
    return work.tokens_at_once(layout) * model.vocab_size / layout.tp * 2 * 4


def _attention_width(model: ModelConfig, layer: int) -> int:
    """Entries a token of queries, keys, values and context."""
    heads = model.num_heads + model.layer_kv_heads(layer)
    return heads * (model.head_dim + model.v_head_dim)
