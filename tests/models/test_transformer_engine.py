"""Transformer Engine cannot be imported without a GPU. What can be checked: its modules, as Megatron wraps them, take what
attention passes, and its parameters find their rules."""

import ast
import importlib
import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gagar_mcore.models import backends
from gagar_mcore.models.attention import GroupedAttention, GroupedAttentionSubmodules, PackedCoreAttention
from gagar_mcore.models.megatron import Execution, Parallelism, mark_shards, transformer_config
from gagar_mcore.models.packed import packed_sequences
from gagar_mcore.models.presets import preset
from gagar_mcore.models.weight_map import rule_name

WRAPPERS = Path(importlib.util.find_spec("megatron.core").submodule_search_locations[0]) / "extensions" / "transformer_engine.py"


def signature(name: str, method: str = "__init__") -> inspect.Signature:
    """That of a class's method, read from the source of Megatron's wrappers, which are no classes here."""
    classes = (node for node in ast.walk(ast.parse(WRAPPERS.read_text())) if isinstance(node, ast.ClassDef))
    body = next(node for node in classes if node.name == name).body
    arguments = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == method).args
    required = len(arguments.args) - len(arguments.defaults)
    parameters = [_parameter(a, inspect.Parameter.POSITIONAL_OR_KEYWORD, i >= required) for i, a in enumerate(arguments.args)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parameters += [_parameter(a, inspect.Parameter.KEYWORD_ONLY, default is not None) for a, default in keywords]
    return inspect.Signature(parameters)


def _parameter(argument: ast.arg, kind: Any, optional: bool) -> inspect.Parameter:
    return inspect.Parameter(argument.arg, kind, default=None if optional else inspect.Parameter.empty)


class Recorder(torch.nn.Module):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__()
        self.call = ("self", *arguments), keywords


@pytest.fixture(scope="module")
def module() -> GroupedAttention:
    """Attention whose parts note what they were built with."""
    config = SimpleNamespace(hidden_size=64, recompute_granularity=None, init_method=None, output_layer_init_method=None)
    groups = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))
    model = preset("qwen3-30b-a3b")
    return GroupedAttention(config, GroupedAttentionSubmodules(Recorder, Recorder, Recorder, Recorder), model, 1, groups)


@pytest.mark.parametrize(
    ("part", "wrapper", "constructor"),
    [
        ("linear_qkv", "TEColumnParallelLinear", "__init__"),
        ("linear_proj", "TERowParallelLinear", "__init__"),
        ("q_norm", "TENorm", "__new__"),
    ],
)
def test_the_wrappers_take_what_attention_passes(module, part, wrapper, constructor):
    arguments, keywords = getattr(module, part).call
    signature(wrapper, constructor).bind(*arguments, **keywords)


class FusedAttention(torch.nn.Module):
    """Stands for Megatron's TEDotProductAttention, which is no class without Transformer Engine: notes what it is built and
    called with, and returns zeros in the shape of the fused kernels, `[T, H * dv]`."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__()
        self.built = ("self", *arguments), keywords

    def forward(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        self.called = ("self", *arguments), keywords
        query, _, value = arguments[:3]
        return value.new_zeros(len(query), query.shape[1] * value.shape[2])


@pytest.fixture
def attention(monkeypatch):
    """`models/transformer_engine.py`, loaded anew on top of the stand-in."""
    wrappers = importlib.import_module("megatron.core.extensions.transformer_engine")
    monkeypatch.setattr(wrappers, "TEDotProductAttention", FusedAttention)
    spec = importlib.util.find_spec("gagar_mcore.models.transformer_engine")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FLASH = preset("mimo-v2-flash")
CONFIG = transformer_config(FLASH, Parallelism(), Execution(), backends.local_backend())
LAYERS = pytest.mark.parametrize(
    ("layer", "kv_heads", "window", "softmax"),
    [(0, 4, None, "vanilla"), (1, 8, (127, 0), "learnable")],
    ids=["global", "sliding"],
)


@LAYERS
def test_a_layer_has_its_own_heads_window_and_sinks(attention, layer, kv_heads, window, softmax):
    own = attention.layer_config(CONFIG, FLASH, layer)

    assert (own.num_query_groups, own.window_size, own.softmax_type) == (kv_heads, window, softmax)
    assert own.window_attn_skip_freq is None
    assert (CONFIG.num_query_groups, CONFIG.window_size, CONFIG.softmax_type) == (4, None, "vanilla")


@LAYERS
def test_fused_attention_is_built_as_its_wrapper_asks(attention, layer, kv_heads, window, softmax):
    arguments, keywords = attention.TECoreAttention(CONFIG, FLASH, layer + 1, "groups").built
    told = signature("TEDotProductAttention").bind(*arguments, **keywords).arguments

    own = told.pop("config")
    assert (own.num_query_groups, own.window_size, own.softmax_type) == (kv_heads, window, softmax)
    assert told == {
        "self": "self",
        "layer_number": layer + 1,
        "attn_mask_type": attention.AttnMaskType.padding_causal,
        "attention_type": "self",
        "k_channels": 192,
        "v_channels": 128,
        "pg_collection": "groups",
    }


def test_fused_attention_is_called_as_its_wrapper_asks(attention):
    core = attention.TECoreAttention(CONFIG, FLASH, 1, "groups")
    query, key, value = torch.zeros(7, 64, 192), torch.ones(7, 4, 192), torch.ones(7, 4, 128)
    assert core(query, key, value, packed_sequences(torch.tensor([0, 5, 7]))).shape == (7, 64, 128)

    arguments, keywords = core.called
    told = signature("TEDotProductAttention", "forward").bind(*arguments, **keywords).arguments
    assert told["query"] is query and told["key"] is key and told["value"] is value and told["attention_mask"] is None
    assert told["attn_mask_type"] is attention.AttnMaskType.padding_causal
    sequences = told["packed_seq_params"]
    for bounds in (sequences.cu_seqlens_q, sequences.cu_seqlens_kv):
        assert bounds.dtype == torch.int32 and bounds.tolist() == [0, 5, 7]
    assert (sequences.qkv_format, sequences.max_seqlen_q, sequences.max_seqlen_kv) == ("thd", 5, 5)


@pytest.mark.parametrize(
    ("present", "cp", "core", "fused"),
    [(False, 1, PackedCoreAttention, False), (True, 1, FusedAttention, True), (True, 2, PackedCoreAttention, True)],
)
def test_the_backend_is_the_best_that_is_present(monkeypatch, present, cp, core, fused):
    monkeypatch.setattr(backends, "has_transformer_engine", lambda: present)
    monkeypatch.setattr(backends, "transformer_engine_backend", lambda: backends.Backend(None, FusedAttention, fused=True))
    best = backends.best_backend(cp)

    assert (best.core_attention, best.fused) == (core, fused)


def test_fp8_needs_transformer_engine():
    with pytest.raises(ValueError, match=r"trainer\.fp8: needs Transformer Engine .* or set trainer\.fp8=none"):
        transformer_config(FLASH, Parallelism(), Execution("bf16", "blockwise"), backends.local_backend())


def test_a_wrong_argument_would_be_found():
    with pytest.raises(TypeError):
        signature("TEColumnParallelLinear").bind("self", 1, 2, colour="red")


def test_experts_in_one_module_have_the_rules_of_experts_in_many():
    grouped = "decoder.layers.3.mlp.experts.linear_fc2.weight17"
    assert rule_name(grouped) == "decoder.layers.3.mlp.experts.local_experts.17.linear_fc2.weight"
    assert rule_name("decoder.layers.0.mlp.linear_fc1.weight") == "decoder.layers.0.mlp.linear_fc1.weight"


class Sinks(torch.nn.Module):
    """Stands for Transformer Engine's attention of a sliding layer, which registers its sinks so, without a mark."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax_offset = torch.nn.Parameter(torch.zeros(4))
        self.weight = torch.nn.Parameter(torch.zeros(4))


def test_sinks_count_on_every_tensor_parallel_rank():
    layer = torch.nn.Sequential(Sinks())
    for _ in range(2):  # a mark may be there before
        mark_shards(layer)

    sinks = layer[0].softmax_offset
    assert (sinks.tensor_model_parallel, sinks.partition_dim, sinks.partition_stride) == (True, 0, 1)
    assert not hasattr(layer[0].weight, "tensor_model_parallel")
