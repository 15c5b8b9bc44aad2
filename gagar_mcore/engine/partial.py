"""Answers that a server broke off, and how another goes on from their last token."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation
from gagar_mcore.records.types import WeightSpan

NOTHING = Generation([], [], [], "abort")


class EngineLost(EngineError):
    """What was asked may be asked again. said: to each request of the call, so far; finish reason `abort` where it broke off."""

    def __init__(self, reason: str, said: Sequence[Generation]) -> None:
        super().__init__(reason)
        self.said = said


@dataclass(slots=True)
class Partial:
    """The tokens of an answer that have arrived. Those that came with the news of other weights are left out, and what came
    after: which of them the old weights drew is not known before the end."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: int | None = None

    def add(self, token_ids: list[int], logprobs: list[float], version: int) -> None:
        if self.version is None:
            self.version = version
        if version == self.version:
            self.token_ids += token_ids
            self.logprobs += logprobs

    def generation(self, request: GenerateRequest) -> Generation:
        """What was said to `request`. Which experts its tokens passed is not known."""
        if not self.token_ids or self.version is None:
            return NOTHING
        said = Generation(self.token_ids, self.logprobs, [WeightSpan(self.version, 0, len(self.token_ids))], "abort")
        if said.token_ids[-1] in request.stop_token_ids:
            return replace(said, finish_reason="stop")
        return replace(said, finish_reason="length") if len(said.token_ids) >= request.max_new_tokens else said


def remainder(request: GenerateRequest, said: Generation) -> GenerateRequest:
    """What is left to ask."""
    if not said.token_ids:
        return request
    count = len(said.token_ids)
    return replace(request, input_ids=[*request.input_ids, *said.token_ids], max_new_tokens=request.max_new_tokens - count)


def join(said: Generation, rest: Generation) -> Generation:
    """The answer so far; rest: to the `remainder`."""
    if not said.token_ids:
        return rest
    count = len(said.token_ids)
    later = [WeightSpan(span.version, span.start + count, span.end + count) for span in rest.weight_spans]
    return replace(
        rest,
        token_ids=said.token_ids + rest.token_ids,
        logprobs=said.logprobs + rest.logprobs,
        weight_spans=_merged([*said.weight_spans, *later]),
        routed=rest.routed or said.routed,
    )


def _merged(spans: list[WeightSpan]) -> list[WeightSpan]:
    merged: list[WeightSpan] = []
    for span in spans:
        if merged and merged[-1].version == span.version:
            merged[-1] = replace(merged[-1], end=span.end)
        else:
            merged.append(span)
    return merged
