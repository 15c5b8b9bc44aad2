"""Continuous batching: requests join and leave the running batch at any token."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gagar_mcore.engine.cache import Chunk
from gagar_mcore.engine.model import Policy
from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation, RoutedTokens
from gagar_mcore.engine.sampling import sample, uniforms
from gagar_mcore.engine.slots import Slot, SlotPool
from gagar_mcore.records.experts import Experts
from gagar_mcore.records.types import WeightSpan

PREFILL_TOKENS = 1024  # padded tokens of one prefill pass: larger ones fall out of the processor's cache
ADMIT_EVERY = 4  # steps between admissions while others run: newcomers share one prefill pass


@dataclass(eq=False, slots=True)
class Stream:
    """A request at work. `draws[k]` decides token k of the answer. experts: of the tokens read so far, where recorded."""

    request: GenerateRequest
    draws: np.ndarray
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: Literal["stop", "length", "abort"] | None = None
    experts: list[Experts] = field(default_factory=list)

    @classmethod
    def of(cls, request: GenerateRequest) -> "Stream":
        return cls(request, uniforms(request.seed, request.max_new_tokens))

    def generation(self, version: int) -> Generation:
        if self.finish_reason is None:
            raise RuntimeError("the stream is still at work")
        spans = [WeightSpan(version, 0, len(self.token_ids))] if self.token_ids else []
        return Generation(self.token_ids, self.logprobs, spans, self.finish_reason, self.routed())

    def routed(self) -> RoutedTokens | None:
        if not self.experts:
            return None
        experts = np.concatenate(self.experts)
        return RoutedTokens(len(self.request.input_ids) + len(self.token_ids) - 1 - len(experts), experts)

    def add(self, token: int, logprob: float) -> None:
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token in self.request.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) == self.request.max_new_tokens:
            self.finish_reason = "length"


Work = tuple[Stream, Slot, list[int]]  # the last: token ids to feed


class Decoder:
    """Runs streams on one policy. `step` adds one token to each running stream and starts those that find a row."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.clear()

    def clear(self) -> None:
        """Forget every session. Only while nothing runs."""
        self._slots = SlotPool(self._policy.rows)
        self._waiting: deque[Stream] = deque()
        self._running: dict[Stream, Slot] = {}
        self._steps = 0

    @property
    def version(self) -> int:
        return self._policy.version

    def submit(self, streams: Sequence[Stream]) -> None:
        """Raises EngineError where a session already has a stream at work."""
        at_work = {stream.request.session_id for stream in (*self._waiting, *self._running)}
        for stream in streams:
            if stream.request.session_id in at_work:
                raise EngineError(f"session_id: {stream.request.session_id!r} already has a request at work")
        self._waiting.extend(streams)

    def abort(self, streams: Iterable[Stream]) -> None:
        """End `streams` where they are."""
        for stream in streams:
            stream.finish_reason = stream.finish_reason or "abort"
        self._retire()

    def end_session(self, session_id: str) -> None:
        """Abort what the session has at work and free its row."""
        self.abort([stream for stream in (*self._waiting, *self._running) if stream.request.session_id == session_id])
        self._slots.forget(session_id)

    def step(self) -> int:
        """Returns the number of new tokens."""
        running = [(stream, slot, stream.token_ids[-1:]) for stream, slot in self._running.items()]
        if running:
            self._advance(running)
        self._steps += 1
        admitted = self._admit() if not running or self._steps % ADMIT_EVERY == 0 else []
        for work in _prefill_batches(admitted):
            self._advance(work)
        return len(running) + len(admitted)

    def _admit(self) -> list[Work]:
        """Give rows to waiting streams, first come first served."""
        admitted = []
        while self._waiting and (slot := self._slots.acquire(self._waiting[0].request.session_id)):
            stream = self._waiting.popleft()
            self._running[stream] = slot
            ids = list(stream.request.input_ids)
            kept = len(slot.cached) if ids[: len(slot.cached)] == slot.cached else 0
            slot.cached = ids[: min(kept, len(ids) - 1)]
            admitted.append((stream, slot, ids[len(slot.cached) :]))
        return admitted

    def _advance(self, work: Sequence[Work]) -> None:
        """Feed each stream's new tokens and draw its next one."""
        streams = [stream for stream, _, _ in work]
        chunk = Chunk.of(
            [slot.row for _, slot, _ in work], [ids for _, _, ids in work], [len(slot.cached) for _, slot, _ in work]
        )
        logits = self._policy.forward(chunk)
        if self._policy.recorder is not None:
            for stream, experts in zip(streams, self._policy.recorder.take(chunk), strict=True):
                stream.experts.append(experts)
        for _, slot, ids in work:
            slot.cached += ids
        draws = [stream.draws[len(stream.token_ids)] for stream in streams]
        tokens, logprobs = sample(logits, [stream.request.temperature for stream in streams], draws)
        for stream, token, logprob in zip(streams, tokens, logprobs, strict=True):
            stream.add(token, logprob)
        self._retire()

    def _retire(self) -> None:
        self._waiting = deque(stream for stream in self._waiting if stream.finish_reason is None)
        for stream in [stream for stream in self._running if stream.finish_reason is not None]:
            self._slots.release(stream.request.session_id, self._running.pop(stream))


def _prefill_batches(admitted: Sequence[Work]) -> Iterator[Sequence[Work]]:
    """Streams of similar length together, at most `PREFILL_TOKENS` padded tokens a batch."""
    batch: list[Work] = []
    for work in sorted(admitted, key=lambda work: len(work[2])):
        if batch and (len(batch) + 1) * len(work[2]) > PREFILL_TOKENS:
            yield batch
            batch = []
        batch.append(work)
    if batch:
        yield batch
