"""What every engine offers, whichever server stands behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from gagar_mcore.records.expert_index import StoredRows
from gagar_mcore.records.experts import Experts
from gagar_mcore.records.types import WeightSpan


class EngineError(RuntimeError):
    """The engine is gone, hung past its deadline, or refused the call: an infrastructure failure, never the policy's fault."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Continue `input_ids` (the whole context so far) until a stop token or `max_new_tokens`.

    `session_id` names the conversation: an engine may keep its key-value cache between turns. `seed` decides every
    draw of this call; `temperature` 0 is greedy."""

    session_id: str
    input_ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RoutedTokens:
    """The experts that tokens `[start, start + m)` of the session passed in this call: those that it read, from where its cache
    ended to the last but one. The last is drawn and not yet read. experts: `[m, layers with experts, top_k]`, or where they
    are."""

    start: int
    experts: Experts | StoredRows


@dataclass(frozen=True, slots=True)
class Generation:
    """`token_ids`, `logprobs` `[num_new_tokens]`: a stop token is included where it was generated; log-probs are those of
    the sampling distribution. `weight_spans` count from the first new token; `routed` where the engine records experts."""

    token_ids: list[int]
    logprobs: list[float]
    weight_spans: list[WeightSpan]
    finish_reason: Literal["stop", "length", "abort"]
    routed: RoutedTokens | None = None


class Engine(Protocol):
    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        """One answer a request, in order. With `deterministic` set, an answer depends on its call alone, never on
        what else the engine is doing. Raises EngineError."""

    async def end_session(self, session_id: str) -> None:
        """The conversation is over: its cache may be freed."""

    async def load_weights(self, directory: Path, version: int) -> None:
        """Load HF-format safetensors; later tokens carry `version`. Raises EngineError."""

    async def release_memory(self) -> None:
        """Leave the memory of a device to the trainer, until the next call: calls that run are finished, every cache is dropped.
        Raises EngineError."""

    async def close(self) -> None: ...
