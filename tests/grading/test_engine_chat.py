"""A grading model behind the Engine protocol. The engine of these tests stands for a model: it says what a script has it say,
in the tokens of the real renderer."""

import asyncio
import json

import pytest
from chat_models import write_chat_checkpoint
from grading_builders import FIXED, make_workspace, repair, trajectory
from scripted_model import by_size, outside

from gagar_mcore.agent.calls import Answer, ToolCall
from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.credit import CreditParams
from gagar_mcore.engine.protocol import EngineError, Generation
from gagar_mcore.grading.agentic import AgenticGrader
from gagar_mcore.grading.engine_chat import EngineModel
from gagar_mcore.grading.protocol import SessionFailed
from gagar_mcore.grading.session import Budget
from gagar_mcore.grading.written import bare_call, written_calls

SLOPPY = FIXED.replace("return out", "print(out)\n    return out")


class ScriptedEngine:
    """`script`: from the text of the whole context to an Answer, a finish reason, or an error."""

    def __init__(self, renderer, script):
        self.renderer, self.script = renderer, script
        self.heard, self.ended = [], []

    async def generate(self, requests):
        [request] = requests
        text = self.renderer.decode(request.input_ids)
        self.heard.append((request.session_id, request.input_ids, text))
        said = self.script(text)
        if isinstance(said, Exception):
            raise said
        ids = self.renderer.answer(said) if isinstance(said, Answer) else [1, 2]
        return [Generation(ids, [0.0] * len(ids), [], "stop" if isinstance(said, Answer) else said)]

    async def end_session(self, session_id):
        self.ended.append(session_id)


@pytest.fixture(scope="module", params=["tiny", "qwen3-30b-a3b"])
def renderer(request, tmp_path_factory):
    return load_renderer(write_chat_checkpoint(tmp_path_factory.mktemp("model"), request.param))


def calling(name, **arguments):
    return Answer(text="So be it.", thinking="Let me see.", calls=(ToolCall(name, arguments),))


def diligent(text):
    if "candidates; passing, to be graded" not in text:
        return calling("overview")
    shown = outside(text[text.index("3 candidates; passing") :])
    return calling("submit_verdict", grades=by_size([{"role": "tool", "content": shown}]))


def judge(tmp_path, renderer, script, max_context=100_000):
    made = make_workspace(
        tmp_path, trajectory("g-m00", repair()), trajectory("g-m01", repair(SLOPPY)), trajectory("g-m02", reward=0.0)
    )
    engine = ScriptedEngine(renderer, script)
    model = EngineModel(engine, renderer, max_context, 64, 0.6)
    grader = AgenticGrader("own", model.open_chat, Budget(5, 10**6, 60.0), CreditParams())
    try:
        return asyncio.run(grader.grade(made)), engine
    finally:
        assert engine.ended == [engine.heard[0][0]]


def test_a_session_in_tokens(tmp_path, renderer):
    verdict, engine = judge(tmp_path, renderer, diligent)
    assert {id: grade.rank for id, grade in verdict.grades.items()} == {"g-m00": 1, "g-m01": 2}
    (_, first, opening), (_, second, _) = engine.heard
    assert second[: len(first)] == first, "what was read and said is kept as it was"
    assert "submit_verdict" in opening and "You compare patches" in opening


@pytest.mark.parametrize("said", ["length", "abort", EngineError("gone")])
def test_an_engine_that_fails_costs_the_group(tmp_path, renderer, said):
    with pytest.raises(SessionFailed, match=r"^endpoint: "):
        judge(tmp_path, renderer, lambda text: said)


def test_a_context_that_is_full_ends_it(tmp_path, renderer):
    with pytest.raises(SessionFailed, match="tokens is full"):
        judge(tmp_path, renderer, lambda text: calling("overview"), max_context=12_000)


def test_a_model_that_never_calls(tmp_path, renderer):
    with pytest.raises(SessionFailed, match=r"^calls: "):
        judge(tmp_path, renderer, lambda text: Answer(text="I would rather talk."))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call><function=overview></function></tool_call>", [("overview", {})]),
        ("<think>x</think><tool_call><function=a><parameter=n>3</parameter></function></tool_call>", [("a", {"n": "3"})]),
        ('<tool_call><function=a><parameter=g>[{"r": 1}]</parameter></function></tool_call>', [("a", {"g": [{"r": 1}]})]),
        ("<tool_call><function=a><parameter=g>[no json</parameter></function></tool_call>", [("a", {"g": "[no json"})]),
        ('<tool_call>{"name": "a", "arguments": {"n": 3}}</tool_call>', [("a", {"n": 3})]),
        ("<tool_call>nothing</tool_call>", []),
        ("words", []),
    ],
)
def test_calls_written_as_text(text, expected):
    assert [(call.name, json.loads(call.arguments)) for call in written_calls(text)] == expected


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"tool": "overview", "arguments": {}}', ["overview"]),
        ('```json\n{"tool": "overview", "arguments": {}}\n```', ["overview"]),
        ('{"tool": "overview"}', []),
        ('{"tool": 3, "arguments": {}}', []),
        ("{" * 100_000, []),
        ("no braces", []),
    ],
)
def test_a_call_that_is_the_whole_answer(text, names):
    assert [call.name for call in bare_call(text)] == names
