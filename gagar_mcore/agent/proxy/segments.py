"""Segments: token sequences of one session, each a conversation that only ever grew."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_

from gagar_mcore.agent.calls import Answer, CallError, Tool
from gagar_mcore.agent.context import Context
from gagar_mcore.agent.proxy.conversation import Asked, Call, Message, Said, invalid, same
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.transcript import Transcript
from gagar_mcore.engine.protocol import Generation
from gagar_mcore.records.types import Turn

Identity = tuple[str, tuple[Call, ...]]


@dataclass(slots=True)
class Segment:
    """`history` is what the tokens of `transcript` say; the last message is the policy's. `told`: those before it, as the agent
    told them last. A busy segment is being continued. A turn takes as long as its answer and what the agent does before it asks
    again."""

    number: int
    tools: tuple[Tool, ...]
    transcript: Transcript = field(default_factory=Transcript)
    history: list[Message] = field(default_factory=list)
    told: tuple[Message, ...] = ()
    busy: bool = False
    answered_at: float = 0.0

    def extended_by(self, asked: Asked) -> bool:
        if self.busy or self.tools != asked.tools:
            return False
        known, told = len(self.history), len(self.told)
        compared = told if len(asked.messages) >= told and all(map(is_, asked.messages, self.told)) else 0
        return same(asked.messages[compared:known], self.history[compared:])

    def new(self, asked: Asked) -> Sequence[Message]:
        """The messages of `asked` that are not recorded yet."""
        return asked.messages[len(self.history) :]

    def closing(self, renderer: Renderer) -> list[int]:
        """What ends the recorded tokens before anything new."""
        return _closing(self.transcript.token_ids, renderer) if self.history else []

    def record(self, asked: Asked, context: list[int], generation: Generation, said: Said, turn: Turn) -> None:
        new = self.new(asked)
        now = time.monotonic()
        if turns := self.transcript.turns:
            observation = "\n".join(message.text for message in new if isinstance(message, Context))
            acting = now - turn.engine_seconds - self.answered_at
            turns[-1] = replace(turns[-1], observation=observation, seconds=turns[-1].seconds + acting)
        self.answered_at = now
        self.transcript.add_context(context)
        self.transcript.add_generation(generation)
        self.transcript.turns.append(turn)
        self.history += [*new, said]
        self.told = asked.messages


def render(
    messages: Sequence[Message], renderer: Renderer, tools: Sequence[Tool], spoken: Mapping[Identity, list[int]], opening: bool
) -> list[int]:
    """Ids of messages up to where an answer begins. What the policy has said before in this session is written with the ids that
    it generated; only what it never said is rendered. Raises Refused for a call that cannot be said."""
    ids: list[int] = []
    waiting: list[Context] = []
    for message in messages:
        if isinstance(message, Context):
            waiting.append(message)
            continue
        ids += renderer.opening(waiting, tools) if opening else renderer.following(waiting)
        answer = spoken.get(message.identity) or _written(message, renderer)
        ids += answer + _closing(answer, renderer)
        waiting, opening = [], False
    return ids + (renderer.opening(waiting, tools) if opening else renderer.following(waiting))


def _written(said: Said, renderer: Renderer) -> list[int]:
    try:
        return renderer.answer(Answer(said.text, said.thinking, tuple(call.said for call in said.calls)))
    except CallError as error:
        raise invalid(f"messages: a call of the assistant cannot be written in this model's format: {error}") from error


def _closing(ids: Sequence[int], renderer: Renderer) -> list[int]:
    """The end of a turn that the policy did not end itself: its answer was cut."""
    return [] if ids and ids[-1] in renderer.stop_token_ids else [renderer.stop_token_ids[0]]


def joined(segments: Sequence[Segment]) -> Transcript:
    """The segments in one transcript, in the order in which they began."""
    whole = Transcript()
    for segment in segments:
        own, start = segment.transcript, len(whole.token_ids)
        if start:
            whole.segment_starts.append(start)
        whole.token_ids += own.token_ids
        whole.logprobs += own.logprobs
        whole.loss_mask += own.loss_mask
        whole.weight_spans += [replace(span, start=span.start + start, end=span.end + start) for span in own.weight_spans]
        whole.turns += [replace(turn, index=len(whole.turns) + i) for i, turn in enumerate(own.turns)]
        whole.answers += [(first + start, end + start) for first, end in own.answers]
        whole.routed += [replace(routed, start=routed.start + start) for routed in own.routed]
    return whole
