"""Transformer Engine cannot be imported without a GPU. What can be checked: its modules, as Megatron wraps them, take what
attention passes, and its parameters find their rules."""

import ast
import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gagar_mcore.models.attention import GroupedAttention, GroupedAttentionSubmodules
from gagar_mcore.models.megatron import mark_shards
from gagar_mcore.models.presets import preset
from gagar_mcore.models.weight_map import rule_name

WRAPPERS = Path(importlib.util.find_spec("megatron.core").submodule_search_locations[0]) / "extensions" / "transformer_engine.py"


def signature(name: str, constructor: str = "__init__") -> inspect.Signature:
    """That of a class's constructor, read from the source of Megatron's wrappers."""
    classes = (node for node in ast.walk(ast.parse(WRAPPERS.read_text())) if isinstance(node, ast.ClassDef))
    body = next(node for node in classes if node.name == name).body
    arguments = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == constructor).args
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


def test_fused_attention_takes_what_the_core_passes():
    bound = signature("TEDotProductAttention").bind(
        "self", "config", 1, "mask", "self", k_channels=192, v_channels=128, pg_collection="groups"
    )
    assert bound.arguments["attention_type"] == "self"


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
