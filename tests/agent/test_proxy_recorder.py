"""The proxy's record against the built-in session's, and what becomes of a conversation that an agent edits."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxied import BASH, KEY, LIMITS, QWEN3, RENDERERS, Scripted, bash, recorder_of

from gagar_mcore.agent.calls import Answer, Tool, ToolCall
from gagar_mcore.agent.context import Context
from gagar_mcore.agent.proxy.conversation import Answered, Asked, Call, Message, Refused, Said
from gagar_mcore.agent.proxy.limits import ProxyLimits
from gagar_mcore.agent.proxy.recorder import Recorder
from gagar_mcore.agent.proxy.segments import joined
from gagar_mcore.agent.renderer import Renderer, render_session
from gagar_mcore.agent.session import SessionLimits
from gagar_mcore.agent.template_qwen3 import Qwen3Renderer

every_template = pytest.mark.parametrize("renderer", RENDERERS, ids=["tiny", "qwen3", "mimo"])
TOOLS = (Tool("bash", "Runs it.", declared=BASH),)
MARKS = [
    "<|im_end|>",
    "<|im_start|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|end|>",
    "<|obs|>",
    "\n",
    "é",
    "x",
    "}",
]
text = st.lists(st.sampled_from(MARKS) | st.text("ab \n", max_size=4), max_size=5).map("".join)
words = text.filter(lambda t: "<tool_call>" not in t and "think>" not in t)
commands = text.map(lambda t: ToolCall("bash", {"command": t}))
answers = st.builds(Answer, words, st.sampled_from(["", "hm"]), st.just(()) | commands.map(lambda call: (call,)))


def told(said: Said) -> Said:
    """An answer as an agent tells it again: without thoughts, its edges trimmed."""
    return Said(said.text.strip(), "", said.calls)


async def converse(recorder: Recorder, opening: list[Message], observations: list[list[Message]]) -> list[Message]:
    """An agent that only ever adds to its conversation."""
    messages = list(opening)
    for new in [*observations, None]:
        answered = await recorder.answer(Asked(tuple(messages), TOOLS))
        messages += [told(answered.said), *(new or [])]
    return messages


@every_template
@settings(max_examples=30)
@given(prompt=text, turns=st.lists(st.tuples(answers, text), min_size=1, max_size=4))
def test_a_conversation_has_the_tokens_of_the_built_in_session(
    renderer: Renderer, prompt: str, turns: list[tuple[Answer, str]]
) -> None:
    """Whatever stands in it: history is recorded once and never rendered again, and look-alikes of special tokens are text."""
    engine = Scripted(renderer, [answer for answer, _ in turns])
    recorder = recorder_of(engine, renderer=renderer)
    observations: list[list[Message]] = [[Context("tool", seen)] for _, seen in turns[:-1]]
    asyncio.run(converse(recorder, [Context("user", prompt)], observations))
    [segment] = recorder.segments
    last = [(turns[-1][0], "")]
    expected = render_session(renderer, prompt, [*turns[:-1], *last], TOOLS)
    assert (segment.transcript.token_ids.tolist(), segment.transcript.loss_mask.tolist()) == expected
    assert recorder.edits == 0
    assert [turn.observation for turn in segment.transcript.turns] == [*(seen for _, seen in turns[:-1]), ""]


@every_template
def test_what_the_engine_was_given_and_gave_is_what_is_recorded(renderer: Renderer) -> None:
    engine = Scripted(renderer, [bash("ls"), Answer("done", "hm")], recording=True)
    recorder = recorder_of(engine, renderer=renderer)
    opening: list[Message] = [Context("system", "be brief"), Context("user", "fix it")]
    asyncio.run(converse(recorder, opening, [[Context("tool", "a.py"), Context("user", "go on")]]))
    transcript = joined(recorder.segments)
    first, second = engine.asked
    assert transcript.segment_starts == [0]
    assert transcript.token_ids.tolist() == second.input_ids + engine.said[1].token_ids
    assert second.input_ids[: len(first.input_ids)] == first.input_ids
    own = [value for value, mask in zip(transcript.logprobs, transcript.loss_mask, strict=True) if mask]
    assert own == pytest.approx(engine.said[0].logprobs + engine.said[1].logprobs)  # kept as float32
    assert [(s.version, s.end - s.start) for s in transcript.weight_spans] == [
        (i, len(g.token_ids)) for i, g in enumerate(engine.said)
    ]
    experts = transcript.experts()
    assert experts is not None and experts[:-1].min() == 1 and (experts[-1] == -1).all()


def test_seeds_are_those_of_the_built_in_session_and_sampling_is_the_recipes() -> None:
    engine = Scripted(RENDERERS[0], [Answer("a"), Answer("b")])
    recorder = recorder_of(engine, renderer=RENDERERS[0])
    asyncio.run(converse(recorder, [Context("user", "p")], [[Context("tool", "o")]]))
    assert {(r.temperature, r.max_new_tokens, r.session_id) for r in engine.asked} == {(1.0, 200, KEY.trajectory_id)}
    assert len({r.seed for r in engine.asked}) == 2


EDITS: dict[str, Any] = {
    "an observation": lambda m: [*m[:2], Context("tool", "elided"), *m[3:]],
    "the prompt": lambda m: [Context("user", "another"), *m[1:]],
    "an answer": lambda m: [m[0], Said("I said this", "", ()), *m[2:]],
    "a call": lambda m: [m[0], Said(m[1].text, "", (Call.of("bash", {"command": "rm"}),)), *m[2:]],
    "a message left out": lambda m: [m[0], *m[3:]],
    "thoughts": lambda m: [m[0], Said(m[1].text, "I never thought this", m[1].calls), *m[2:]],
}


@every_template
@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_an_edited_history_begins_a_segment_whose_history_is_not_trained(renderer: Renderer, edit: Any) -> None:
    engine = Scripted(renderer, [bash("ls", "look", "hm"), bash("cat"), Answer("c"), Answer("d")])
    recorder = recorder_of(engine, renderer=renderer)

    async def main() -> None:
        messages = await converse(recorder, [Context("user", "p")], [[Context("tool", "long")]])
        edited = [*edit(messages), Context("tool", "x")]
        answered = await recorder.answer(Asked(tuple(edited), TOOLS))
        await recorder.answer(Asked((*edited, answered.said, Context("user", "more")), TOOLS))

    asyncio.run(main())
    first, second = (segment.transcript for segment in recorder.segments)
    assert recorder.edits == 1
    assert first.token_ids.tolist() == engine.asked[1].input_ids + engine.said[1].token_ids
    assert second.token_ids.tolist() == engine.asked[3].input_ids + engine.said[3].token_ids
    assert sum(second.loss_mask) == sum(len(generation.token_ids) for generation in engine.said[2:])
    whole = joined(recorder.segments)
    assert whole.segment_starts == [0, len(first.token_ids)] and whole.token_ids == first.token_ids + second.token_ids
    assert [turn.index for turn in whole.turns] == [0, 1, 2, 3]
    for span in whole.weight_spans:
        assert whole.token_ids[span.start : span.end].tolist() == engine.said[span.version].token_ids
    assert [request.session_id for request in engine.asked] == ["g-m00", "g-m00", "g-m00/1", "g-m00/1"]


@every_template
def test_an_answer_that_survives_an_edit_keeps_the_ids_that_were_generated(renderer: Renderer) -> None:
    """Ids that the template would never write: a token at a time."""
    spelled = [i for character in "look" for i in renderer.answer(Answer(character))[-2:-1]]
    own = [*spelled, renderer.stop_token_ids[0]]
    engine = Scripted(renderer, [own, Answer("b")])
    recorder = recorder_of(engine, renderer=renderer)

    async def main() -> None:
        answered = await recorder.answer(Asked((Context("user", "p"),)))
        assert answered.said.text == "look"
        await recorder.answer(Asked((Context("user", "q"), answered.said, Context("user", "r"))))

    asyncio.run(main())
    start = len(renderer.opening([Context("user", "q")]))
    assert engine.asked[1].input_ids[start : start + len(own)] == own
    assert recorder.edits == 1


def test_two_conversations_of_one_agent_are_told_apart() -> None:
    renderer = RENDERERS[1]
    engine = Scripted(renderer, [Answer("a"), Answer("b"), Answer("c"), Answer("d")])
    recorder = recorder_of(engine, renderer=renderer)

    async def main() -> None:
        lines: list[list[Message]] = [[Context("user", "one")], [Context("user", "two")]]
        for line in (*lines, *lines):
            answered = await recorder.answer(Asked(tuple(line)))
            line += [answered.said, Context("user", "on")]

    asyncio.run(main())
    assert [len(segment.transcript.turns) for segment in recorder.segments] == [2, 2]


def test_an_answer_that_was_cut_is_closed_before_the_next_turn() -> None:
    renderer = RENDERERS[1]
    engine = Scripted(renderer, [Answer("a long answer"), Answer("b")])
    recorder = recorder_of(engine, renderer=renderer)

    async def main() -> Answered:
        answered = await recorder.answer(Asked((Context("user", "p"),), max_tokens=3))
        await recorder.answer(Asked((Context("user", "p"), answered.said, Context("user", "go on"))))
        return answered

    assert asyncio.run(main()).finish == "length"
    [segment] = recorder.segments
    cut = engine.said[0].token_ids
    assert len(cut) == 3 and not segment.transcript.turns[0].ok
    behind = engine.asked[1].input_ids[len(engine.asked[0].input_ids) + 3 :]
    assert behind == [renderer.stop_token_ids[0], *renderer.following([Context("user", "go on")])]


def test_a_malformed_call_is_words_and_marks_its_turn() -> None:
    renderer = RENDERERS[1]
    engine = Scripted(renderer, [Answer('<tool_call>{"name": 1}</tool_call>'), bash("x", "y"), Answer("<tool_call>")])
    recorder = recorder_of(engine, renderer=renderer)

    async def main() -> list[Said]:
        messages = await converse(recorder, [Context("user", "p")], [[Context("user", "no call")], [Context("tool", "")]])
        return [message for message in messages if isinstance(message, Said)]

    malformed, called, opened = asyncio.run(main())
    assert malformed == Said('<tool_call>{"name": 1}</tool_call>')
    assert called == Said("y", "", (Call.of("bash", {"command": "x"}),))
    assert opened.calls == ()
    assert [turn.ok for turn in recorder.segments[0].transcript.turns] == [False, True, False]


@pytest.mark.parametrize(
    ("limits", "bounds", "asked", "status", "reason"),
    [
        ({"max_turns": 1}, {}, "p", 410, "max_turns"),
        ({"max_context": 250}, {}, "word " * 100, 400, "max_context"),
        ({"max_context": 250}, {}, "x" * 4_100, 400, "max_context"),
        ({"max_context": 2500}, {}, "x" * 21_000, 400, "max_context"),
        ({}, {"session_tokens": 300}, "word " * 100, 410, "max_tokens"),
    ],
)
def test_limits_refuse_and_are_remembered(
    limits: dict[str, int], bounds: dict[str, int], asked: str, status: int, reason: str
) -> None:
    engine = Scripted(RENDERERS[1], [Answer("a"), Answer("b")])
    own = SessionLimits(**{**{n: getattr(LIMITS, n) for n in LIMITS.__slots__}, **limits})
    recorder = recorder_of(engine, own, ProxyLimits(**bounds), RENDERERS[1])

    async def main() -> None:
        await recorder.answer(Asked((Context("user", "p"),)))
        with pytest.raises(Refused) as refused:
            await recorder.answer(Asked((Context("user", asked),)))
        assert refused.value.status == status
        assert recorder.refused == reason
        if status == 400:  # an agent may shorten its conversation and go on
            await recorder.answer(Asked((Context("user", "shorter"),)))
            assert recorder.refused is None

    asyncio.run(main())
    assert (recorder.over is None) == (status == 400)
    assert len(recorder.segments) == len(engine.said)


def test_every_cache_of_the_session_is_freed() -> None:
    engine = Scripted(RENDERERS[1], [Answer("a"), Answer("b")])
    recorder = recorder_of(engine, renderer=RENDERERS[1])

    async def main() -> None:
        await recorder.answer(Asked((Context("user", "p"),)))
        for _ in range(5):  # what is refused has none
            with pytest.raises(Refused):
                await recorder.answer(Asked((Context("user", "x" * 400_000),)))
        await recorder.answer(Asked((Context("user", "q"),)))
        await recorder.close()

    asyncio.run(main())
    assert engine.ended == ["g-m00", "g-m00/6"]


@pytest.mark.parametrize("where", ["thoughts", "arguments", "tools"])
def test_long_text_is_encoded_beside_the_event_loop_wherever_it_stands(where: str) -> None:
    threads: set[int] = set()

    class Watched(Qwen3Renderer):
        def opening(self, messages: Sequence[Context], tools: Sequence[Tool] = ()) -> list[int]:
            threads.add(threading.get_ident())
            return super().opening(messages, tools)

    long = "x" * 30_000
    call = Call.of("bash", {"command": long if where == "arguments" else ""})
    said = Said("", long if where == "thoughts" else "", (call,))
    tools = (Tool("bash", long if where == "tools" else "", declared=BASH),)
    renderer = Watched(QWEN3.vocabulary)
    recorder = recorder_of(Scripted(renderer, [Answer("a")]), replace(LIMITS, max_context=50_000), renderer=renderer)
    asyncio.run(recorder.answer(Asked((Context("user", "p"), said, Context("user", "q")), tools)))
    assert threads and threading.get_ident() not in threads


def test_messages_without_number_are_refused_before_they_are_encoded() -> None:
    class Untouched(Qwen3Renderer):
        def opening(self, messages: Sequence[Context], tools: Sequence[Tool] = ()) -> list[int]:
            raise AssertionError

    renderer = Untouched(QWEN3.vocabulary)
    recorder = recorder_of(Scripted(renderer, []), renderer=renderer)
    with pytest.raises(Refused, match="prompt is too long"):
        asyncio.run(recorder.answer(Asked((Context("user", ""),) * (LIMITS.max_context + 1))))
