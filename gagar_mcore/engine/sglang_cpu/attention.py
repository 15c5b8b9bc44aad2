"""SGLang's attention backend `torch_native` takes no sinks, and reads the cache of sliding layers at the places of global ones.
This one, of the same name, does what SGLang's GPU backends do."""

from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, reach: int, sinks: Tensor | None) -> Tensor:
    """Causal attention of the last `q` of `k` tokens.

    query: `[q, heads, d]`; key, value: `[k, kv_heads, d or d_v]`; reach: how many tokens before its own a query sees, negative:
    all; sinks: `[heads]`, the logit of a key without a value. Returns `[q, heads, d_v]`."""
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * scale
    keys = torch.arange(len(key))
    distance = keys[len(key) - len(query) :, None] - keys
    hidden = (distance < 0) | (distance > reach) if reach >= 0 else distance < 0
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, len(query), 1)], dim=-1)
    weights = scores.softmax(dim=-1)[..., : len(key)]
    return torch.einsum("hqk,khd->qhd", weights, value.float()).to(query.dtype)


class CpuAttention(TorchNativeAttnBackend):
    """Sequence by sequence; for models without cross-attention."""

    def forward_extend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: Any, save_kv_cache: bool = True, sinks: Tensor | None = None
    ) -> Tensor:
        return self._forward(q, k, v, layer, batch, batch.extend_seq_lens.tolist(), save_kv_cache, sinks)

    def forward_decode(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: Any, save_kv_cache: bool = True, sinks: Tensor | None = None
    ) -> Tensor:
        return self._forward(q, k, v, layer, batch, [1] * len(batch.seq_lens), save_kv_cache, sinks)

    def _forward(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: Any, new: list[int], save: bool, sinks: Tensor | None
    ) -> Tensor:
        pool = self.token_to_kv_pool
        if save:
            pool.set_kv_buffer(layer, KVWriteLoc(batch.out_cache_loc, self.swa_out_cache_loc), k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim).split(new)
        reach = -1 if layer.sliding_window_size is None else layer.sliding_window_size
        places = self._places(batch, sliding=reach >= 0)
        out = [
            attend(query, keys[at], values[at], layer.scaling, reach, sinks) for query, at in zip(queries, places, strict=True)
        ]
        return torch.cat(out).flatten(1)

    def _places(self, batch: Any, sliding: bool) -> Iterator[Tensor]:
        """Of each sequence's tokens in the cache."""
        for row, length in zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True):
            places = self.req_to_token_pool.req_to_token[row, :length]
            own_pool = sliding and self.use_sliding_window_kv_pool
            yield self.token_to_kv_pool.translate_loc_from_full_to_swa(places) if own_pool else places


def install() -> None:
    register_attention_backend("torch_native")(CpuAttention)
