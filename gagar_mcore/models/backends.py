"""The modules that a model is built of: Transformer Engine's on a GPU that has it, else Megatron's own. Weights have the same
names in both, but for the experts, which Transformer Engine keeps in one grouped module."""

import importlib.util
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec_for_backend
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from gagar_mcore.models.attention import GroupedAttention, GroupedAttentionSubmodules, PackedCoreAttention
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.experts import Experts
from gagar_mcore.models.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class Backend:
    """provider: Megatron's choice of linear layers, norms and experts. fused: of Transformer Engine, with grouped experts."""

    provider: Any
    core_attention: type
    fused: bool

    @property
    def norm(self) -> Any:
        norm = self.provider.layer_norm(rms_norm=True)
        return norm

    def layer_spec(self, model: ModelConfig, moe: bool) -> ModuleSpec:
        """A transformer layer with grouped attention and either experts or a dense feed-forward network."""
        attention = GroupedAttentionSubmodules(
            linear_qkv=self.provider.column_parallel_linear(),
            linear_proj=self.provider.row_parallel_linear(),
            core_attention=self.core_attention,
            norm=self.norm,
        )
        return ModuleSpec(
            module=TransformerLayer,
            submodules=TransformerLayerSubmodules(
                input_layernorm=self.norm,
                self_attention=ModuleSpec(module=GroupedAttention, params={"model": model}, submodules=attention),
                self_attn_bda=get_bias_dropout_add,
                pre_mlp_layernorm=self.norm,
                mlp=self._experts(model) if moe else self._dense(),
                mlp_bda=get_bias_dropout_add,
            ),
        )

    def _experts(self, model: ModelConfig) -> ModuleSpec:
        return get_moe_module_spec_for_backend(self.provider, num_experts=model.num_experts, moe_grouped_gemm=self.fused)

    def _dense(self) -> ModuleSpec:
        fc1, fc2 = self.provider.column_parallel_linear(), self.provider.row_parallel_linear()
        return ModuleSpec(module=MLP, submodules=MLPSubmodules(linear_fc1=fc1, linear_fc2=fc2))


class LocalModules(LocalSpecProvider):
    """Megatron's own modules, with our norm and experts."""

    def layer_norm(self, *options: bool, **keywords: bool) -> type:
        return RMSNorm

    def grouped_mlp_modules(self, *options: bool, **keywords: bool) -> Any:
        sequential = super().grouped_mlp_modules(*options, **keywords)
        if isinstance(sequential, tuple):  # class and submodules, up to Megatron-Core 0.16
            return Experts, sequential[1]
        return partial(Experts, **sequential.keywords)


def local_backend() -> Backend:
    return Backend(LocalModules(), PackedCoreAttention, fused=False)


def transformer_engine_backend() -> Backend:
    """Raises ImportError where Transformer Engine is not installed."""
    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

    from gagar_mcore.models.transformer_engine import TECoreAttention

    return Backend(TESpecProvider(), TECoreAttention, fused=True)


def has_transformer_engine() -> bool:
    """Whether this process can run it: it is installed and there is a GPU."""
    return torch.cuda.is_available() and importlib.util.find_spec("transformer_engine") is not None


def best_backend(cp: int = 1) -> Backend:
    """Under context parallelism, which the fused attention refuses for sinks, attention is the one in plain PyTorch."""
    if not has_transformer_engine():
        return local_backend()
    fused = transformer_engine_backend()
    return fused if cp == 1 else replace(fused, core_attention=PackedCoreAttention)
