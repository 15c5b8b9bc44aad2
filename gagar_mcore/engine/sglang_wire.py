"""Requests and answers of SGLang's native interface."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

import numpy as np

from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation, RoutedTokens
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.records.expert_index import StoredRows
from gagar_mcore.records.experts import Experts
from gagar_mcore.records.types import WeightSpan

FINISH_REASONS = ("stop", "length", "abort")


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


def read_generation(meta: dict[str, Any], request: GenerateRequest, experts_from: int | None, model: ModelConfig) -> Generation:
    """meta: `meta_info` of the answer to `request`; one that was aborted before it began has no tokens. Raises EngineError where
    it does not answer that."""
    with _readable():
        token_ids, logprobs = _read_tokens(meta)
        packed = None if experts_from is None else meta.get("routed_experts")
        generation = Generation(
            token_ids=token_ids,
            logprobs=logprobs,
            weight_spans=[WeightSpan(int(span["version"]), span["start"], span["end"]) for span in meta["weight_versions"]],
            finish_reason=meta["finish_reason"]["type"],
            routed=RoutedTokens(experts_from, read_routed(packed, model)) if packed and experts_from is not None else None,
        )
    if fault := _fault(generation, request, experts_from, model):
        raise EngineError(f"session {request.session_id!r}: no answer to what was asked: {fault}")
    return generation


def _fault(generation: Generation, request: GenerateRequest, experts_from: int | None, model: ModelConfig) -> str | None:
    ids, spans = generation.token_ids, generation.weight_spans
    if len(ids) > request.max_new_tokens or (not ids and generation.finish_reason != "abort"):
        return f"{len(ids)} tokens where 1 to {request.max_new_tokens} were asked for"
    if ids and (min(ids) < 0 or max(ids) >= model.vocab_size):
        return f"ids beyond 0..{model.vocab_size - 1}"
    if [0, *(span.end for span in spans)] != [*(span.start for span in spans), len(ids)]:
        return f"weight versions of other tokens than its {len(ids)}: {spans}"
    if generation.finish_reason not in FINISH_REASONS:
        return f"finish reason {generation.finish_reason!r}"
    if experts_from is None or generation.finish_reason == "abort":
        return None
    told = 0 if generation.routed is None else len(generation.routed.experts)
    passed = len(request.input_ids) + len(ids) - 1 - experts_from
    return f"experts of {told} tokens where {passed} had passed" if told != passed else None


def read_meta(answer: dict[str, Any]) -> dict[str, Any]:
    """`meta_info` of an answer, or of a part of one. Raises EngineError."""
    if not isinstance(meta := answer.get("meta_info"), dict):
        raise EngineError(f"no answer: {answer!r:.200}")
    return meta


def read_part(meta: dict[str, Any]) -> tuple[list[int], list[float], int]:
    """Tokens, log-probs and weight version of a part of an answer. Raises EngineError."""
    with _readable():
        return *_read_tokens(meta), int(meta["weight_version"])


def _read_tokens(meta: dict[str, Any]) -> tuple[list[int], list[float]]:
    """A log-prob that is no number comes as null: a TypeError."""
    scored = meta.get("output_token_logprobs") or []
    logprobs = [float(logprob) for logprob, _, _ in scored]
    if not all(map(isfinite, logprobs)):
        raise ValueError("a log-prob is not finite")
    return [int(token) for _, token, _ in scored], logprobs


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"no answer that can be read: {type(error).__name__} {error}") from error


def read_routed(told: str | dict[str, Any], model: ModelConfig) -> Experts | StoredRows:
    """What the server told, or a sidecar stored of it. Raises ValueError."""
    return read_experts(told, model) if isinstance(told, str) else StoredRows.read(told)


def read_experts(packed: str, model: ModelConfig) -> Experts:
    """`[tokens, layers with experts, top_k]` of base64 int32 `[tokens, layers, top_k]`."""
    every = np.frombuffer(base64.b64decode(packed), np.int32).reshape(-1, model.num_layers, model.top_k)
    experts: Experts = every[:, np.array(model.moe_layers)].astype(np.int16)
    return experts
