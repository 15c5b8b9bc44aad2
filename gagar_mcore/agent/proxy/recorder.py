"""One session of an outside agent: its calls answered by an engine, every token kept as it was generated."""

import asyncio
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from gagar_mcore.agent.proxy.conversation import Answered, Asked, Finish, Refused, Said, characters, invalid
from gagar_mcore.agent.proxy.limits import ProxyLimits
from gagar_mcore.agent.proxy.reading import read_answer
from gagar_mcore.agent.proxy.segments import Identity, Segment, render
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.session import SessionKey, SessionLimits
from gagar_mcore.engine.protocol import Engine, EngineError, GenerateRequest, Generation
from gagar_mcore.randomness import derive_seed
from gagar_mcore.records.types import EndReason, InvalidReason, Turn

CHARACTERS_A_TOKEN = 16  # that no text reaches on average
AT_ONCE = 20_000  # characters that are encoded within the event loop


class TooLong(Refused):
    """In the words by which clients of either API know it."""

    def __init__(self, tokens: int, most: int) -> None:
        message = f"prompt is too long: {tokens} tokens > {most} maximum. This model's maximum context length is {most} tokens."
        super().__init__(400, "invalid_request_error", message, "context_length_exceeded")


@dataclass(slots=True)
class Recorder:
    """`over` says why no more calls are answered; `refused` which limit the newest call has met; `failure` what was not the
    agent's fault."""

    key: SessionKey
    engine: Engine
    renderer: Renderer
    limits: SessionLimits
    bounds: ProxyLimits
    segments: list[Segment] = field(default_factory=list)
    over: str | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    refused: EndReason | None = None
    failure: tuple[InvalidReason, str] | None = None
    bytes_read: int = 0
    _calls: int = 0
    _working: int = 0
    _opened: int = 0
    _asked: dict[str, None] = field(default_factory=dict)  # sessions of the engine, in their order
    _spoken: dict[Identity, list[int]] = field(default_factory=dict)

    @property
    def edits(self) -> int:
        """How often the agent told a conversation that no recorded one goes on to: it edited history, or began another."""
        return max(0, len(self.segments) - 1)

    @property
    def tokens(self) -> int:
        return sum(len(segment.transcript.token_ids) for segment in self.segments)

    def end(self, reason: str) -> None:
        """From now on every call is refused. The first reason stays."""
        self.over = self.over or reason
        self.ended.set()

    def fail(self, reason: InvalidReason, detail: str) -> Refused:
        """The infrastructure has failed: the session is over. The agent is not told of the detail."""
        self.failure = (reason, detail)
        self.end("it is out of service")
        return Refused(503, "api_error", f"this session is over: {self.over}", "session_over")

    def read(self, count: int) -> None:
        """Count the bytes of a request. Raises Refused."""
        self._check_open()
        self.bytes_read += count
        if self.bytes_read > self.bounds.session_bytes:
            raise self._end_by("max_bytes", f"its requests were {self.bounds.session_bytes} bytes")

    async def answer(self, asked: Asked) -> Answered:
        """Generate the next answer of the conversation and record it. Raises Refused, where nothing is recorded. Sampling is the
        recipe's, whatever the agent asks for, but for fewer tokens."""
        self._check_open()
        if not asked.messages or isinstance(asked.messages[-1], Said):
            raise invalid("messages: the last one must not be the assistant's; an answer cannot be begun for it")
        if self._calls >= self.limits.max_turns:
            raise self._end_by("max_turns", f"{self.limits.max_turns} calls were answered")
        with self._at_work(asked) as segment:
            try:
                context = await self._context(segment, asked)
                request = self._request(segment, context, asked)
            except TooLong:
                self.refused = "max_context"
                raise
            index, self._calls = self._calls, self._calls + 1
            generation, seconds = await self._generate(request)
            return self._record(index, segment, asked, context, generation, seconds)

    async def count(self, asked: Asked) -> int:
        """The tokens that the policy would read before its answer. Nothing is recorded. Raises Refused."""
        self._check_open()
        if not asked.messages:
            raise invalid("messages: there must be at least one")
        segment = self._extended_by(asked) or Segment(self._opened, asked.tools)
        read = len(segment.transcript.token_ids)
        return read + len(await self._context(segment, asked))

    async def close(self) -> None:
        self.end("the session is closed")
        for name in self._asked:
            await self.engine.end_session(name)

    async def _generate(self, request: GenerateRequest) -> tuple[Generation, float]:
        """And the seconds that it took."""
        self._check_open()
        started = time.monotonic()
        self._asked[request.session_id] = None
        try:
            [generation] = await self.engine.generate([request])
        except EngineError as error:
            raise self.fail("engine_failed", str(error)) from error
        self._check_open()
        return generation, time.monotonic() - started

    def _record(
        self, index: int, segment: Segment, asked: Asked, context: list[int], generation: Generation, seconds: float
    ) -> Answered:
        text = self.renderer.decode(generation.token_ids)
        said, well_formed = read_answer(text, self.renderer.calls, asked.tools)
        cut = generation.finish_reason != "stop"
        turn = Turn(
            index=len(segment.transcript.turns),
            action=text,
            tool=said.calls[0].name if said.calls else "",
            observation="",
            ok=well_formed and not cut,
            finish_reason=generation.finish_reason,
            generated_tokens=len(generation.token_ids),
            seconds=seconds,
            engine_seconds=seconds,
        )
        if not segment.history:
            self.segments.append(segment)
        segment.record(asked, context, generation, said, turn)
        self._spoken[said.identity] = generation.token_ids
        self.refused = None
        output = len(generation.token_ids)
        finish: Finish = "length" if cut else "calls" if said.calls else "stop"
        return Answered(index, said, finish, len(segment.transcript.token_ids) - output, output)

    async def _context(self, segment: Segment, asked: Asked) -> list[int]:
        """What is to be read before the answer. Text that cannot fit is refused before it costs anyone the time to encode it, and
        long text holds up no other session."""
        new = segment.new(asked)
        told = sum(map(characters, new))
        if (tokens := told // CHARACTERS_A_TOKEN) > self.limits.max_context:
            raise TooLong(tokens, self.limits.max_context)
        closing, rendered = segment.closing(self.renderer), partial(render, new, self.renderer, asked.tools)
        described = 0 if segment.history else sum(len(str(tool)) for tool in asked.tools)
        if told + described <= AT_ONCE:
            return closing + rendered(self._spoken, opening=not segment.history)
        return closing + await asyncio.to_thread(rendered, dict(self._spoken), opening=not segment.history)

    def _request(self, segment: Segment, context: list[int], asked: Asked) -> GenerateRequest:
        ids = segment.transcript.token_ids + array("i", context)
        most = min(asked.max_tokens or self.limits.max_new_tokens, self.limits.max_new_tokens)
        if len(ids) + most > self.limits.max_context:
            raise TooLong(len(ids), self.limits.max_context - most)
        if self.tokens + len(ids) - len(segment.transcript.token_ids) + most > self.bounds.session_tokens:
            raise self._end_by("max_tokens", f"its segments have {self.bounds.session_tokens} tokens")
        key = self.key
        return GenerateRequest(
            session_id=self._name(segment.number),
            input_ids=ids,
            max_new_tokens=most,
            temperature=self.limits.temperature,
            seed=derive_seed(key.seed, f"sample/{key.purpose}", key.step, key.group_id, key.member, self._calls),
            stop_token_ids=self.renderer.stop_token_ids,
        )

    def _name(self, segment: int) -> str:
        """Of the engine's session: each segment has a cache of its own."""
        return f"{self.key.trajectory_id}/{segment}" if segment else self.key.trajectory_id

    def _extended_by(self, asked: Asked) -> Segment | None:
        """The longest."""
        fitting = [segment for segment in self.segments if segment.extended_by(asked)]
        return max(fitting, key=lambda segment: len(segment.history), default=None)

    @contextmanager
    def _at_work(self, asked: Asked) -> Iterator[Segment]:
        """The segment that `asked` extends, or a new one. Raises Refused where too many calls are at work."""
        if self._working >= self.bounds.calls:
            raise Refused(429, "rate_limit_error", f"at most {self.bounds.calls} calls of a session at once; try again")
        segment = self._extended_by(asked) or Segment(self._opened, asked.tools)
        self._opened = max(self._opened, segment.number + 1)
        self._working += 1
        segment.busy = True
        try:
            yield segment
        finally:
            segment.busy = False
            self._working -= 1

    def _check_open(self) -> None:
        if self.over is not None:
            raise Refused(410, "invalid_request_error", f"this session is over: {self.over}", "session_over")

    def _end_by(self, limit: EndReason, reason: str) -> Refused:
        self.refused = limit
        self.end(reason)
        return Refused(410, "invalid_request_error", f"this session is over: {self.over}", "session_over")
