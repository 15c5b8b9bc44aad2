"""Which Megatron parameter is made of which tensors of a Hugging Face checkpoint, in both families."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.shards import Form, GateUp, GroupedQkv, Replicated, Sharded


@dataclass(frozen=True, slots=True)
class Rule:
    """`parameter` is the Megatron name in a model without pipeline parallelism; where `expert` is set, `{}` in it stands for
    the number of the expert on its own rank. `tensors` are the checkpoint's names, in the order the form takes them."""

    parameter: str
    tensors: tuple[str, ...]
    form: Form
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Layer `index` under Megatron's and under the checkpoint's name; those of multi-token prediction follow the model's own."""

    index: int
    theirs: str
    ours: str
    pre_mlp_norm: str  # the checkpoint's name

    @property
    def is_mtp(self) -> bool:
        return self.pre_mlp_norm == MTP_PRE_MLP_NORM


MTP_PRE_MLP_NORM = "pre_mlp_layernorm"
GROUPED_EXPERT = re.compile(r"experts\.(linear_fc[12])\.weight(\d+)$")
MTP_NORMS = ("enorm", "hnorm", "final_layernorm")


def layer_names(model: ModelConfig) -> Iterator[LayerNames]:
    for layer in range(model.num_layers):
        yield LayerNames(layer, f"decoder.layers.{layer}", f"model.layers.{layer}", "post_attention_layernorm")
    for depth in range(model.mtp_layers):
        theirs = f"mtp.layers.{depth}.transformer_layer"
        yield LayerNames(model.num_layers + depth, theirs, f"model.mtp.layers.{depth}", MTP_PRE_MLP_NORM)


def rule_name(name: str) -> str:
    """Grouped experts hold the weights of all of a rank's in one module; rules name each as a module of its own."""
    return GROUPED_EXPERT.sub(r"experts.local_experts.\2.\1.weight", name)


def weight_rules(model: ModelConfig) -> Iterator[Rule]:
    """Every parameter and buffer of the model, in a fixed order."""
    yield Rule("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), Sharded(0))
    for layer in layer_names(model):
        yield from _attention(model, layer)
        yield from _experts(model, layer) if model.is_moe(layer.index) else _dense(layer)
        if layer.is_mtp:
            yield from _mtp(layer)
    yield Rule("decoder.final_layernorm.weight", ("model.norm.weight",), Replicated())
    yield Rule("output_layer.weight", ("lm_head.weight",), Sharded(0))


def tensor_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint."""
    hidden = model.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (model.vocab_size, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (model.vocab_size, hidden),
    }
    for layer in layer_names(model):
        ours, moe, kv_heads = layer.ours, model.is_moe(layer.index), model.layer_kv_heads(layer.index)
        shapes |= {
            f"{ours}.input_layernorm.weight": (hidden,),
            f"{ours}.{layer.pre_mlp_norm}.weight": (hidden,),
            f"{ours}.self_attn.q_proj.weight": (model.num_heads * model.head_dim, hidden),
            f"{ours}.self_attn.k_proj.weight": (kv_heads * model.head_dim, hidden),
            f"{ours}.self_attn.v_proj.weight": (kv_heads * model.v_head_dim, hidden),
            f"{ours}.self_attn.o_proj.weight": (hidden, model.num_heads * model.v_head_dim),
        }
        if model.is_sliding(layer.index):
            shapes[f"{ours}.self_attn.attention_sink_bias"] = (model.num_heads,)
        if model.qk_norm:
            shapes |= {f"{ours}.self_attn.{part}_norm.weight": (model.head_dim,) for part in "qk"}
        if moe:
            shapes[f"{ours}.mlp.gate.weight"] = (model.num_experts, hidden)
        if moe and model.selection_bias:
            shapes[f"{ours}.mlp.gate.e_score_correction_bias"] = (model.num_experts,)
        names = [f"{ours}.mlp.experts.{j}" for j in range(model.num_experts)] if moe else [f"{ours}.mlp"]
        size = model.moe_ffn_size if moe else model.ffn_size
        for name in names:
            shapes |= {f"{name}.gate_proj.weight": (size, hidden), f"{name}.up_proj.weight": (size, hidden)}
            shapes[f"{name}.down_proj.weight"] = (hidden, size)
        if layer.is_mtp:
            shapes |= {f"{ours}.{norm}.weight": (hidden,) for norm in MTP_NORMS}
            shapes[f"{ours}.eh_proj.weight"] = (hidden, 2 * hidden)
    return shapes


def _attention(model: ModelConfig, layer: LayerNames) -> Iterator[Rule]:
    theirs, ours = layer.theirs, layer.ours
    groups = model.layer_kv_heads(layer.index)
    qkv = GroupedQkv(groups, (model.num_heads // groups * model.head_dim, model.head_dim, model.v_head_dim))
    projections = tuple(f"{ours}.self_attn.{part}_proj.weight" for part in "qkv")
    yield Rule(f"{theirs}.input_layernorm.weight", (f"{ours}.input_layernorm.weight",), Replicated())
    yield Rule(f"{theirs}.self_attention.linear_qkv.weight", projections, qkv)
    yield Rule(f"{theirs}.self_attention.linear_proj.weight", (f"{ours}.self_attn.o_proj.weight",), Sharded(1))
    if model.is_sliding(layer.index):
        yield Rule(
            f"{theirs}.self_attention.core_attention.softmax_offset", (f"{ours}.self_attn.attention_sink_bias",), Sharded(0)
        )
    if model.qk_norm:
        for part in "qk":
            yield Rule(f"{theirs}.self_attention.{part}_norm.weight", (f"{ours}.self_attn.{part}_norm.weight",), Replicated())
    yield Rule(f"{theirs}.pre_mlp_layernorm.weight", (f"{ours}.{layer.pre_mlp_norm}.weight",), Replicated())


def _mtp(layer: LayerNames) -> Iterator[Rule]:
    theirs = layer.theirs.removesuffix(".transformer_layer")
    for norm in MTP_NORMS:
        yield Rule(f"{theirs}.{norm}.weight", (f"{layer.ours}.{norm}.weight",), Replicated())
    yield Rule(f"{theirs}.eh_proj.weight", (f"{layer.ours}.eh_proj.weight",), Sharded(0))


def _dense(layer: LayerNames) -> Iterator[Rule]:
    theirs, ours = f"{layer.theirs}.mlp", f"{layer.ours}.mlp"
    yield Rule(f"{theirs}.linear_fc1.weight", (f"{ours}.gate_proj.weight", f"{ours}.up_proj.weight"), GateUp())
    yield Rule(f"{theirs}.linear_fc2.weight", (f"{ours}.down_proj.weight",), Sharded(1))


def _experts(model: ModelConfig, layer: LayerNames) -> Iterator[Rule]:
    theirs, ours = f"{layer.theirs}.mlp", f"{layer.ours}.mlp"
    yield Rule(f"{theirs}.router.weight", (f"{ours}.gate.weight",), Replicated())
    if model.selection_bias:
        yield Rule(f"{theirs}.router.expert_bias", (f"{ours}.gate.e_score_correction_bias",), Replicated())
    for expert in range(model.num_experts):
        local, whole = f"{theirs}.experts.local_experts.{{}}", f"{ours}.experts.{expert}"
        gate_up = (f"{whole}.gate_proj.weight", f"{whole}.up_proj.weight")
        yield Rule(f"{local}.linear_fc1.weight", gate_up, GateUp(), expert)
        yield Rule(f"{local}.linear_fc2.weight", (f"{whole}.down_proj.weight",), Sharded(1), expert)
