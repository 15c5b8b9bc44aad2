"""Requests and answers of SGLang's native interface."""

import base64
from typing import Any

import numpy as np

from gagar_mcore.engine.protocol import GenerateRequest, Generation, RoutedTokens
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.records.expert_index import StoredRows
from gagar_mcore.records.experts import Experts
from gagar_mcore.records.types import WeightSpan


def generate_body(request: GenerateRequest, name: str, experts_from: int | None, interval: int | None) -> dict[str, Any]:
    """The body of `/generate`. name: what the server calls the request; experts_from: the first token whose experts it is to
    tell, None for no experts; interval: of so many tokens the answer comes in parts, None for a whole one."""
    body: dict[str, Any] = {
        "rid": name,
        "input_ids": list(request.input_ids),
        "sampling_params": {
            "max_new_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "stop_token_ids": list(request.stop_token_ids),
            "sampling_seed": request.seed >> 1,  # a signed number there
        },
        "return_logprob": True,
    }
    if interval is not None:
        body["stream"] = True
        body["sampling_params"] |= {"stream_interval": interval}
    experts = {"return_routed_experts": True, "routed_experts_start_len": experts_from}
    return body if experts_from is None else body | experts


def read_generation(meta: dict[str, Any], experts_from: int | None, model: ModelConfig) -> Generation:
    """meta: `meta_info` of the answer; one that was aborted before it began has no tokens."""
    packed = meta.get("routed_experts")
    token_ids, logprobs = read_tokens(meta)
    return Generation(
        token_ids=token_ids,
        logprobs=logprobs,
        weight_spans=[WeightSpan(int(span["version"]), span["start"], span["end"]) for span in meta["weight_versions"]],
        finish_reason=meta["finish_reason"]["type"],
        routed=RoutedTokens(experts_from, read_routed(packed, model)) if packed and experts_from is not None else None,
    )


def read_tokens(meta: dict[str, Any]) -> tuple[list[int], list[float]]:
    scored = meta.get("output_token_logprobs") or []
    return [token for _, token, _ in scored], [logprob for logprob, _, _ in scored]


def read_routed(told: str | dict[str, Any], model: ModelConfig) -> Experts | StoredRows:
    """What the server told, or a sidecar stored of it. Raises ValueError."""
    return read_experts(told, model) if isinstance(told, str) else StoredRows.read(told)


def read_experts(packed: str, model: ModelConfig) -> Experts:
    """`[tokens, layers with experts, top_k]` of base64 int32 `[tokens, layers, top_k]`."""
    every = np.frombuffer(base64.b64decode(packed), np.int32).reshape(-1, model.num_layers, model.top_k)
    experts: Experts = every[:, np.array(model.moe_layers)].astype(np.int16)
    return experts
