"""How a checkpoint is stored: the precision and the names of its tensors, its configuration, its size."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.weight_map import layer_names, tensor_shapes, weight_rules
from gagar_mcore.weights import fp8, mxfp4
from gagar_mcore.weights.codecs import Codec, Fp8, FusedPlain, Mxfp4, Plain, ShardedFp8, TensorSpec
from gagar_mcore.weights.qkv import QkvShards

Format = Literal["bf16", "fp32", "fp8", "mxfp4"]
Naming = Literal["split", "fused"]
CONFIG = "config.json"
QUANTIZED = ("fp8", "mxfp4")
FEED_FORWARD = tuple(f"{part}_proj.weight" for part in ("gate", "up", "down"))
NEVER_QUANTIZED = ("self_attn.o_proj.weight", "mlp.gate.weight", "eh_proj.weight", "lm_head.weight")
ABOUT_STORAGE = {"quantization_config", "auto_map", "torch_dtype", "transformers_version", "attention_projection_layout"}


@dataclass(frozen=True)
class Storage:
    """`bf16` and `fp32` store every weight plainly. `fp8` stores the projections of queries, keys and values, of dense layers and
    of experts in blocks of 128 x 128, and `mxfp4` the same but for the experts; output projections, embeddings, router, norms and
    sinks are bfloat16 there, as published. The router's selection bias is float32 in all of them.

    `split` names are those that transformers reads, `fused` has one `qkv_proj` a layer in the shards of `weights.qkv`. In FP8,
    split tensors are quantised by the same shards, as MiMo-V2-Flash is published. Raises ValueError for a model that cannot be
    stored so."""

    model: ModelConfig
    format: Format
    naming: Naming = "split"

    def __post_init__(self) -> None:
        if self.naming == "fused" and self.model.family != "mimo_v2":
            raise ValueError(f"naming: checkpoints of {self.model.family} have no fused projections; choose split")
        if self.format == "mxfp4" and (self.model.hidden_size % mxfp4.BLOCK or self.model.moe_ffn_size % mxfp4.BLOCK):
            raise ValueError(f"format: mxfp4 needs multiples of {mxfp4.BLOCK} for hidden and expert size; choose fp8 or bf16")

    def units(self) -> Iterator[tuple[str, ...]]:
        """All tensors of the model; those are together that are stored together."""
        return (unit for rule in weight_rules(self.model) for unit in units_of(rule.tensors))

    def specs(self, unit: Sequence[str]) -> list[TensorSpec]:
        """What `encode` gives for the tensors of `unit`."""
        return self._codec(unit).specs({name: self._shapes[name] for name in unit})

    def encode(self, unit: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The stored tensors of a unit's plain ones. Raises ValueError, with the name, where a weight is not finite."""
        try:
            return self._codec(list(unit)).encode(unit)
        except ValueError as error:
            raise ValueError(f"{', '.join(unit)}: {error}") from error

    def decode(self, unit: Sequence[str], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The plain tensors of `unit` from their stored ones, as `weights.published` reads them."""
        return self._codec(unit).decode(stored, unit)

    def as_read(self, unit: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a reader of the stored tensors gets. Raises ValueError as `encode` does."""
        return self.decode(list(unit), self.encode(unit))

    def config(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """`config.json`: the model in the spelling that goes with the names, what describes the storage, and whatever else
        `before`, another configuration of the model, tells."""
        spelled = to_hf(self.model, published=self.naming == "fused")
        replaced = ABOUT_STORAGE | to_hf(self.model).keys() | to_hf(self.model, published=True).keys()
        other = {key: value for key, value in before.items() if key not in replaced}
        stored: dict[str, Any] = {"dtype": "float32" if self.format == "fp32" else "bfloat16"}
        if self.model.family == "mimo_v2":
            stored["attention_projection_layout"] = "fused_qkv" if self.naming == "fused" else "split"
        if self.format in QUANTIZED:
            stored["quantization_config"] = self._quantization_config()
        return other | spelled | stored

    def companions(self, before: Mapping[str, bytes]) -> dict[str, bytes]:
        """The files beside the weights: those of another checkpoint of the model, with `config.json` as this one is stored."""
        return {**before, CONFIG: json.dumps(self.config(json.loads(before[CONFIG])), indent=2).encode()}

    def _quantization_config(self) -> dict[str, Any]:
        plain = [name.removesuffix(".weight") for name in self._shapes if name.endswith(NEVER_QUANTIZED)]
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [fp8.BLOCK, fp8.BLOCK],
            "ignored_layers": plain,  # the name of this list in published configurations
            "modules_to_not_convert": plain,  # and in transformers
            **({"store_dtype": "mxfp4", "mxfp4_block_size": mxfp4.BLOCK} if self.format == "mxfp4" else {}),
        }

    def _codec(self, unit: Sequence[str]) -> Codec:
        name, quantized = unit[0], self.format in QUANTIZED
        plain_dtype = torch.float32 if self.format == "fp32" or "e_score_correction_bias" in name else torch.bfloat16
        if name.endswith("self_attn.q_proj.weight"):
            return self._projection_codec(self._shards[name.removesuffix(".q_proj.weight")], plain_dtype)
        if not quantized or ".mlp." not in name or not name.endswith(FEED_FORWARD):
            return Plain(plain_dtype)
        return Mxfp4() if self.format == "mxfp4" and ".mlp.experts." in name else Fp8()

    def _projection_codec(self, shards: QkvShards, plain_dtype: torch.dtype) -> Codec:
        fused = self.naming == "fused"
        if self.format not in QUANTIZED:
            return FusedPlain(plain_dtype, shards) if fused else Plain(plain_dtype)
        return ShardedFp8(shards, fused) if fused or shards.deals_scales else Fp8()

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return tensor_shapes(self.model)

    @cached_property
    def _shards(self) -> dict[str, QkvShards]:
        return {f"{layer.ours}.self_attn": QkvShards.of_layer(self.model, layer.index) for layer in layer_names(self.model)}


def quantised_format(config: Mapping[str, Any]) -> Format | None:
    """The format of a checkpoint with this `config.json`; None where its weights are plain."""
    quantization = config.get("quantization_config")
    if not quantization:
        return None
    return "mxfp4" if quantization.get("store_dtype") == "mxfp4" else "fp8"


def units_of(tensors: Sequence[str]) -> list[tuple[str, ...]]:
    """The units among the tensors of one weight rule."""
    projections = tensors[0].endswith("self_attn.q_proj.weight")
    return [tuple(tensors)] if projections else [(name,) for name in tensors]
