"""Whether a server computes with published weights: hashes of a few of its parameters, made of the published tensors too."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from gagar_mcore.weights.gpu_hash import gpu_hash
from gagar_mcore.weights.published import PLAIN, PublishedCheckpoint
from gagar_mcore.weights.transport import Order

NORM = "model.norm.weight"
DTYPES = (torch.bfloat16, torch.float32)  # in which a server may hold a parameter
LARGEST = 1 << 24  # values of a parameter that is hashed


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of SGLang's model, by its names, from published tensors. alike: the same on every rank; divided: over ranks, if several."""

    layer: int
    alike: dict[str, Tensor] = field(default_factory=dict)
    divided: dict[str, Tensor] = field(default_factory=dict)


async def differing_parameters(order: Order, weights: Path, on_gpu: bool) -> list[str]:
    """Those of `last_parameters` that the server holds other values of. What its ranks divide is left out where they are several,
    and on a GPU, where some kernels want it in another order."""
    expected = await asyncio.to_thread(last_parameters, PublishedCheckpoint(weights))
    experts = [] if any("experts" in name for name in expected.divided) else ["experts"]
    others = ["embed_tokens", "lm_head", *experts, *(f"model.layers.{layer}." for layer in range(expected.layer))]
    answer = await order("/weights_checker", {"action": "checksum", "skip_tensor_list": others})
    ranks: list[Mapping[str, str]] = [rank["checksums"] for rank in answer["ranks"]]
    looked_at = expected.alike | (expected.divided if len(ranks) == 1 and not on_gpu else {})
    return await asyncio.to_thread(_differing, looked_at, ranks, gpu_hash if on_gpu else host_hash)


def last_parameters(checkpoint: PublishedCheckpoint) -> Parameters:
    """The final norm, and of the last layer norm and router, and where they are not quantised queries, keys and values, which are
    one parameter of the server, and the gate and up projections of all experts, which are one, too."""
    model, read = checkpoint.model, checkpoint.read
    layer = f"model.layers.{model.num_layers - 1}"
    found = Parameters(model.num_layers - 1)
    is_moe = model.is_moe(model.num_layers - 1)
    for name in (NORM, f"{layer}.input_layernorm.weight", *([f"{layer}.mlp.gate.weight"] if is_moe else [])):
        found.alike[name] = read(name)
    if not _is_plain(checkpoint, layer):
        return found
    found.divided[f"{layer}.self_attn.qkv_proj.weight"] = torch.cat(
        [read(f"{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
    )
    if is_moe and 2 * model.num_experts * model.moe_ffn_size * model.hidden_size <= LARGEST:
        experts = [f"{layer}.mlp.experts.{expert}" for expert in range(model.num_experts)]
        halves = [[read(f"{expert}.{part}_proj.weight") for part in ("gate", "up")] for expert in experts]
        found.divided[f"{layer}.mlp.experts.w13_weight"] = torch.stack([torch.cat(pair) for pair in halves])
    return found


def _is_plain(checkpoint: PublishedCheckpoint, layer: str) -> bool:
    files = checkpoint.files
    return all(files.dtype(name) in PLAIN for name in files.names if name.startswith(f"{layer}."))


def _differing(expected: Mapping[str, Tensor], ranks: Sequence[Mapping[str, str]], hash_: Callable[[Tensor], str]) -> list[str]:
    """What any rank holds in none of the types with these values."""
    told = {name: {rank.get(name) for rank in ranks} for name in expected}
    return [name for name, tensor in expected.items() if all({hash_(tensor.to(dtype))} != told[name] for dtype in DTYPES)]


def host_hash(tensor: Tensor) -> str:
    """The hash that SGLang makes of a tensor on the host: the first eight bytes of its bytes' SHA-256."""
    return hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()).digest()[:8].hex()
