"""Published-looking checkpoints of tiny models, made by loops over rows, with nothing of the package.

A model has 4 query heads, and key heads as wide as the published ones, 192, so that its blocks of 128 rows are as ragged."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, HEADS, KEY, VALUE, VOCAB = 160, 4, 192, 128, 96
FFN, EXPERT_FFN, EXPERTS = 224, 64, 4
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass
class Handmade:
    """stored: what lies in the file. plain: the same weights under the names of split tensors, float32 where they were
    quantised."""

    config: dict[str, Any]
    stored: dict[str, Tensor] = field(default_factory=dict)
    plain: dict[str, Tensor] = field(default_factory=dict)

    def save(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(self.stored, directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "config.json").write_text(json.dumps(self.config))
        (directory / "tokenizer.json").write_text("{}")
        return directory


class Maker:
    def __init__(self, kv_heads: int, sliding_kv_heads: int, fused: bool, mxfp4: bool, mtp_layers: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(7)
        self.kv_heads, self.sliding_kv_heads = kv_heads, sliding_kv_heads
        self.fused, self.mxfp4, self.mtp_layers = fused, mxfp4, mtp_layers
        self.made = Handmade(published_config(kv_heads, sliding_kv_heads))

    def make(self) -> Handmade:
        self.plain("model.embed_tokens.weight", (VOCAB, HIDDEN))
        for layer, sliding in enumerate((False, True, True, False)):
            name = f"model.layers.{layer}"
            self.attention(name, sliding)
            self.ones(f"{name}.input_layernorm.weight", f"{name}.post_attention_layernorm.weight")
            if layer == 0:
                self.dense(name)
                continue
            self.plain(f"{name}.mlp.gate.weight", (EXPERTS, HIDDEN))
            bias = torch.tensor([0.02, -0.02, 0.01, 0.0])
            self.keep(f"{name}.mlp.gate.e_score_correction_bias", bias, bias)
            for expert in range(EXPERTS):
                for part, shape in projections(EXPERT_FFN):
                    make = self.packed if self.mxfp4 else self.blocked
                    make(f"{name}.mlp.experts.{expert}.{part}_proj.weight", shape)
        for depth in range(self.mtp_layers):
            name = f"model.mtp.layers.{depth}"
            self.attention(name, sliding=True)
            self.dense(name)
            norms = ("enorm", "hnorm", "final_layernorm", "input_layernorm", "pre_mlp_layernorm")
            self.ones(*(f"{name}.{norm}.weight" for norm in norms))
            self.plain(f"{name}.eh_proj.weight", (HIDDEN, 2 * HIDDEN))
        self.ones("model.norm.weight")
        self.plain("lm_head.weight", (VOCAB, HIDDEN))
        return self.made

    def keep(self, name: str, stored: Tensor, plain: Tensor) -> None:
        self.made.stored[name], self.made.plain[name] = stored, plain

    def plain(self, name: str, shape: tuple[int, ...]) -> None:
        weights = (torch.randn(shape, generator=self.generator) * 0.06).bfloat16()
        self.keep(name, weights, weights)

    def ones(self, *names: str) -> None:
        for name in names:
            self.keep(name, torch.ones(HIDDEN).bfloat16(), torch.ones(HIDDEN).bfloat16())

    def dense(self, name: str) -> None:
        for part, shape in projections(FFN):
            self.blocked(f"{name}.mlp.{part}_proj.weight", shape)

    def codes(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """e4m3 values, each block of which reaches 448, and scales that make weights of about 0.06 of them."""
        values = (torch.randn(rows, columns, generator=self.generator) * 130).clamp(-448, 448)
        values[::128, ::128] = 448
        blocks = (rows + 127) // 128, (columns + 127) // 128
        scales = 0.0004 + 0.0002 * torch.rand(blocks, generator=self.generator)
        return values.to(torch.float8_e4m3fn), scales

    def blocked(self, name: str, shape: tuple[int, int]) -> None:
        values, scales = self.codes(*shape)
        self.keep(name, values, by_rows(values, scales))
        self.made.stored[f"{name}_scale_inv"] = scales

    def packed(self, name: str, shape: tuple[int, int]) -> None:
        """Column by column, as the format is described: low four bits first, a scale for 32 columns."""
        rows, columns = shape
        codes = torch.randint(0, 16, shape, generator=self.generator)
        codes[:, ::32] = 7  # 6, the largest, in each block
        exponents = torch.randint(120, 123, (rows, columns // 32), generator=self.generator)
        weights = torch.empty(shape)
        packed = torch.empty(rows, columns // 2, dtype=torch.uint8)
        magnitudes, signs = torch.tensor(FP4)[codes % 8], 1 - 2 * (codes // 8)
        for column in range(columns):
            weights[:, column] = signs[:, column] * magnitudes[:, column] * 2.0 ** (exponents[:, column // 32] - 127)
        for byte in range(columns // 2):
            packed[:, byte] = codes[:, 2 * byte] + 16 * codes[:, 2 * byte + 1]
        self.keep(name, packed, weights)
        self.made.stored[f"{name}_scale"] = exponents.to(torch.uint8)

    def attention(self, name: str, sliding: bool) -> None:
        """Shard after shard: its queries, its keys, its values, in blocks of its own."""
        shards = self.kv_heads
        groups = (self.sliding_kv_heads if sliding else self.kv_heads) // shards
        queries = HEADS // shards
        ends = (queries * KEY, (queries + groups) * KEY, (queries + groups) * KEY + groups * VALUE)
        values: list[Tensor] = []
        scales: list[Tensor] = []
        plain: dict[str, list[Tensor]] = {"q": [], "k": [], "v": []}
        for _ in range(shards):
            shard, of_shard = self.codes(ends[2], HIDDEN)
            weights = by_rows(shard, of_shard)
            values.append(shard)
            scales.append(of_shard)
            plain["q"].append(weights[: ends[0]])
            plain["k"].append(weights[ends[0] : ends[1]])
            plain["v"].append(weights[ends[1] :])
        for part, pieces in plain.items():
            self.made.plain[f"{name}.self_attn.{part}_proj.weight"] = torch.cat(pieces)
        if self.fused:
            self.made.stored[f"{name}.self_attn.qkv_proj.weight"] = torch.cat(values)
            self.made.stored[f"{name}.self_attn.qkv_proj.weight_scale_inv"] = torch.cat(scales)
        else:
            self.deal_out(name, values, scales, ends)
        self.plain(f"{name}.self_attn.o_proj.weight", (HIDDEN, HEADS * VALUE))
        if sliding:
            sinks = torch.linspace(-1, 1, HEADS).bfloat16()
            self.keep(f"{name}.self_attn.attention_sink_bias", sinks, sinks)

    def deal_out(self, name: str, values: list[Tensor], scales: list[Tensor], ends: tuple[int, int, int]) -> None:
        """Three tensors: the scales of the blocks that begin among the queries, among the keys, and the rest."""
        blocks = [(end + 127) // 128 for end in ends]
        for part, rows, cut in (
            ("q", slice(0, ends[0]), slice(0, blocks[0])),
            ("k", slice(ends[0], ends[1]), slice(blocks[0], blocks[1])),
            ("v", slice(ends[1], ends[2]), slice(blocks[1], blocks[2])),
        ):
            stored = f"{name}.self_attn.{part}_proj.weight"
            self.made.stored[stored] = torch.cat([shard[rows] for shard in values])
            self.made.stored[f"{stored}_scale_inv"] = torch.cat([of_shard[cut] for of_shard in scales])


def by_rows(values: Tensor, scales: Tensor) -> Tensor:
    """Every value times the scale of its block of 128 x 128."""
    weights = values.float()
    for row in range(weights.shape[0]):
        for start in range(0, weights.shape[1], 128):
            weights[row, start : start + 128] *= scales[row // 128, start // 128]
    return weights


def projections(ffn: int) -> tuple[tuple[str, tuple[int, int]], ...]:
    return ("gate", (ffn, HIDDEN)), ("up", (ffn, HIDDEN)), ("down", (HIDDEN, ffn))


def published_config(kv_heads: int, sliding_kv_heads: int) -> dict[str, Any]:
    return {
        "model_type": "mimo_v2",
        "architectures": ["MiMoV2ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "moe_intermediate_size": EXPERT_FFN,
        "num_hidden_layers": 4,
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "num_attention_heads": HEADS,
        "swa_num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "swa_num_key_value_heads": sliding_kv_heads,
        "head_dim": KEY,
        "swa_head_dim": KEY,
        "v_head_dim": VALUE,
        "swa_v_head_dim": VALUE,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "max_position_embeddings": 256,
        "attention_value_scale": 0.707,
        "routed_scaling_factor": None,
        "rope_theta": 5000000,
        "swa_rope_theta": 10000,
        "partial_rotary_factor": 0.334,
        "layernorm_epsilon": 1e-5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "n_shared_experts": None,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "bos_token_id": 3,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    }
