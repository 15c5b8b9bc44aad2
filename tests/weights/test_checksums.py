"""Whether hashes that a server tells are those of published weights. The server's parameters are put together here by hand."""

import asyncio
import hashlib

import pytest
import torch
from handmade import EXPERTS, Maker

from gagar_mcore.weights.checksums import differing_parameters
from gagar_mcore.weights.gpu_hash import gpu_hash

LAST = "model.layers.3"


def tell(parameters, dtype, ranks=1):
    """The answers of a server that holds these parameters."""
    hashes = {
        name: hashlib.sha256(tensor.to(dtype).contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        for name, tensor in parameters.items()
    }

    async def order(path, body):
        assert path == "/weights_checker" and {"model.layers.0.", "lm_head"} < set(body["skip_tensor_list"])
        assert not any(skipped in f"{LAST}." for skipped in body["skip_tensor_list"])
        return {"ranks": [{"checksums": hashes}] * ranks}

    return order


def by_hand(plain):
    experts = [[plain[f"{LAST}.mlp.experts.{j}.{part}_proj.weight"] for part in ("gate", "up")] for j in range(EXPERTS)]
    return {
        "model.norm.weight": plain["model.norm.weight"],
        f"{LAST}.input_layernorm.weight": plain[f"{LAST}.input_layernorm.weight"],
        f"{LAST}.mlp.gate.weight": plain[f"{LAST}.mlp.gate.weight"],
        f"{LAST}.self_attn.qkv_proj.weight": torch.cat([plain[f"{LAST}.self_attn.{part}_proj.weight"] for part in "qkv"]),
        f"{LAST}.mlp.experts.w13_weight": torch.stack([torch.cat(halves) for halves in experts]),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The same weights quantised, fused as published, and plain."""
    handmade = Maker(2, 4, fused=True, mxfp4=False).make()
    published = handmade.save(tmp_path_factory.mktemp("checksums") / "fp8")
    handmade.stored = {name: tensor.contiguous() for name, tensor in handmade.plain.items()}
    return published, handmade.save(published.with_name("plain")), by_hand(handmade.plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_server_with_the_weights_is_told_from_one_whose_experts_or_projections_are_others(made, dtype):
    _, plain, parameters = made
    assert asyncio.run(differing_parameters(tell(parameters, dtype), plain, False)) == []
    for name, tensor in parameters.items():
        changed = parameters | {name: tensor.flip(0) if "norm" not in name else tensor + 1}
        assert asyncio.run(differing_parameters(tell(changed, dtype), plain, False)) == [name]


def test_of_quantised_weights_and_of_several_ranks_what_is_alike_is_looked_at(made):
    published, plain, parameters = made
    alike = {name: tensor for name, tensor in parameters.items() if "norm" in name or "gate" in name}
    for order, weights in ((tell(alike, torch.bfloat16), published), (tell(alike, torch.bfloat16, ranks=2), plain)):
        assert asyncio.run(differing_parameters(order, weights, False)) == []
    missing = {"model.norm.weight": alike["model.norm.weight"]}
    assert len(asyncio.run(differing_parameters(tell(missing, torch.bfloat16), published, False))) == 2


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.arange(6.0), "2a1f7701e39788f6"),
        (torch.linspace(-1, 1, 20001).bfloat16(), "7c8cd51a8f17450e"),
        (torch.arange(7, dtype=torch.uint8), "d9e9661b18c29da2"),
        (torch.arange(16384.0), "a2cc36f9cf9eb9d2"),
    ],
)
def test_the_hash_of_a_gpu_is_that_of_sglang_s_kernel(tensor, expected):
    """Expected are the values of the kernel itself, in Triton's interpreter."""
    assert gpu_hash(tensor) == expected
