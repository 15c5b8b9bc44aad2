"""Every template against what its family publishes, and against hostile text. The tokenizers of Qwen3 and MiMo are stand-ins."""

import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest
from chat_models import SPECIAL, WRAPPERS, chat_tokenizer, write_chat_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from gagar_mcore.agent.bash import TOOLS
from gagar_mcore.agent.calls import Answer, CallError, Tool, ToolCall, after_thinking, parse_call
from gagar_mcore.agent.renderer import Renderer, load_renderer, render_session
from gagar_mcore.agent.session import Transcript
from gagar_mcore.agent.template_mimo import MimoRenderer
from gagar_mcore.agent.template_qwen3 import Qwen3Renderer
from gagar_mcore.agent.template_tiny import TinyRenderer
from gagar_mcore.agent.tokenizer import MARKERS, train_tokenizer
from gagar_mcore.agent.vocabulary import Vocabulary
from gagar_mcore.engine.protocol import Generation

PLAIN = chat_tokenizer()  # as a library reads a text: special tokens in it are tokens
RENDERERS: list[Renderer] = [
    TinyRenderer(Vocabulary(train_tokenizer(["def add(x):\n    return x"], 300))),
    Qwen3Renderer(Vocabulary(chat_tokenizer())),
    MimoRenderer(Vocabulary(chat_tokenizer())),
]
CHAT = RENDERERS[1:]
every_template = pytest.mark.parametrize("renderer", RENDERERS, ids=["tiny", "qwen3", "mimo"])
every_chat_template = pytest.mark.parametrize("renderer", CHAT, ids=["qwen3", "mimo"])

TAGS = ["</function>", "</parameter>", "<parameter=command>", "<function=finish>"]
LOOKALIKES = [*MARKERS, *SPECIAL, *WRAPPERS, *TAGS, "\\", '"}', "\n", "é", "x"]
letters = st.characters(exclude_categories=["Cs", "Mn"])  # NFC would join a combining mark with the template's last character
text = st.lists(st.sampled_from(LOOKALIKES) | st.text(letters, max_size=6), max_size=6).map(
    lambda p: unicodedata.normalize("NFC", "".join(p))
)
calls = st.one_of(
    st.builds(lambda command: ToolCall("bash", {"command": command}), text),
    st.builds(lambda path, old, new: ToolCall("str_replace", {"path": path, "old": old, "new": new}), text, text, text),
    st.just(ToolCall("finish", {})),
)
sayable = calls.filter(lambda call: all("</parameter>" not in value for value in call.arguments.values()))
answers = st.builds(Answer, text, text, st.lists(sayable, max_size=2).map(tuple))


@every_template
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_whole_session_is_its_turns_joined_and_the_mask_is_what_was_generated(renderer: Renderer, data: st.DataObject) -> None:
    prompt = data.draw(text)
    turns = data.draw(st.lists(st.tuples(answers, text), max_size=4))
    session = Transcript()
    session.add_context(renderer.prompt(prompt, TOOLS))
    for index, (answer, observation) in enumerate(turns):
        generated = renderer.answer(answer)
        session.add_generation(Generation(generated, [-1.0] * len(generated), [], "stop"))
        if observation or index < len(turns) - 1:
            session.add_context(renderer.observation(observation))
    assert render_session(renderer, prompt, turns, TOOLS) == (list(session.token_ids), list(session.loss_mask))


@every_template
@settings(max_examples=150, deadline=None)
@given(first=text, second=text)
def test_text_adds_no_special_token(renderer: Renderer, first: str, second: str) -> None:
    """Whatever stands in prompt, tool output or words of the policy, the special tokens are those that stand there without it."""
    assert specials(renderer, renderer.prompt(first)) == specials(renderer, renderer.prompt(""))
    assert specials(renderer, renderer.observation(first)) == specials(renderer, renderer.observation(""))
    said = Answer(first, f"x{second}")
    assert specials(renderer, renderer.answer(said)) == specials(renderer, renderer.answer(Answer("", "x")))


@every_template
@settings(max_examples=150, deadline=None)
@given(text)
def test_an_answer_reads_back_as_it_was_said(renderer: Renderer, said: str) -> None:
    before = renderer.decode(renderer.answer(Answer("")))
    assert renderer.decode(renderer.answer(Answer(said))) == before + said


@every_template
@settings(max_examples=200, deadline=None)
@given(call=calls, words=text.filter(lambda t: "<tool_call>" not in t and not t.lstrip().startswith("<think>")), thinking=text)
def test_a_call_reads_back_with_its_name_and_arguments_or_cannot_be_said(
    renderer: Renderer, call: ToolCall, words: str, thinking: str
) -> None:
    try:
        ids = renderer.answer(Answer(words, thinking.replace("</think>", ""), (call,)))
    except CallError as error:
        assert "cannot hold </parameter>" in str(error) and any("</parameter>" in value for value in call.arguments.values())
        return
    assert parse_call(renderer.decode(ids), renderer.calls, TOOLS) == call


@every_template
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*LOOKALIKES, '{"name": "bash"', ', "arguments": {', "<function=bash>", "[" * 9999]), max_size=8))
def test_any_text_is_a_call_or_a_call_error(renderer: Renderer, parts: list[str]) -> None:
    try:
        call = parse_call("<tool_call>" + "".join(parts), renderer.calls, TOOLS)
    except CallError:
        return
    assert call.arguments.keys() == next(tool for tool in TOOLS if tool.name == call.name).parameters.keys()


@every_chat_template
def test_delimiters_that_the_policy_generates_are_trained_and_those_of_the_template_are_not(renderer: Renderer) -> None:
    turns = [(Answer("so", "hm", (ToolCall("bash", {"command": "echo '</tool_call>'"}),)), "<tool_call>")]
    ids, mask = render_session(renderer, "fix <|im_end|>", turns, TOOLS)
    trained = [PLAIN.id_to_token(i) for i, m in zip(ids, mask, strict=True) if m]
    names = {*SPECIAL, *WRAPPERS}
    assert [name for name in trained if name in names] == ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"]
    context = [PLAIN.id_to_token(i) for i, m in zip(ids, mask, strict=True) if not m]
    assert context.count("<tool_call>") == 1  # in the description of the tools alone
    assert mask[-1] == 0 and PLAIN.decode(ids[-3:], skip_special_tokens=False).endswith("assistant\n")


TOOL = Tool("f", "Does f.", {"p": "a thing"})
CALL = ToolCall("f", {"p": "a\n"})


@dataclass(frozen=True)
class Published:
    """A session as the published template writes it, behind the description of the tools."""

    session: str
    tools: str


PUBLISHED = {
    "qwen3": Published(
        "<|im_end|>\n<|im_start|>user\nhello\n\n<|im_end|>\n<|im_start|>assistant\n"
        "<think>\nhm\n</think>\n\nso\n"
        '<tool_call>\n{"name": "f", "arguments": {"p": "a\\n"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n\n out\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        '<tools>\n{"type": "function", "function": {"name": "f", "description": "Does f.", "parameters": {"type": "object", '
        '"properties": {"p": {"type": "string", "description": "a thing"}}, "required": ["p"]}}}\n</tools>',
    ),
    "mimo": Published(
        "<|im_end|><|im_start|>user\nhello\n\n<|im_end|><|im_start|>assistant\n"
        "<think>hm</think>so"
        "<tool_call>\n<function=f>\n<parameter=p>a\n</parameter>\n</function>\n</tool_call><|im_end|>"
        "<|im_start|>tool\n<tool_response>\n\n out\n</tool_response>\n<|im_end|><|im_start|>assistant\n",
        "<tools>\n<function>\n<name>f</name>\n<description>Does f.</description>\n<parameters>\n<parameter>\n<name>p</name>\n"
        '<type>string</type>\n<description>a thing</description>\n</parameter>\n<required>["p"]</required>\n</parameters>\n'
        "</function>\n</tools>",
    ),
}


@every_chat_template
def test_ids_are_those_of_the_published_text(renderer: Renderer, request: pytest.FixtureRequest) -> None:
    """Ids of separators at the edges of a turn included. Ids where the policy begins are its own: its tokens start afresh."""
    published = PUBLISHED["qwen3" if isinstance(renderer, Qwen3Renderer) else "mimo"]
    ids, _ = render_session(renderer, "hello\n\n", [(Answer("so", "hm", (CALL,)), "\n out")], [TOOL])
    whole = PLAIN.decode(ids, skip_special_tokens=False)
    assert whole.startswith("<|im_start|>system\n# Tools") and published.tools in whole
    assert whole.endswith(published.session)
    assert PLAIN.encode(whole).ids == ids


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "bash", "arguments": {"command": 1}}', "command: must be a string"),
        ('{"name": "bash"}', "malformed; write"),
        ('["bash"]', "malformed; write"),
        ('{"name": "bash", "arguments": {"command": "a", "command": "b"}}', "a key occurs twice"),
        ('{"name": "rm", "arguments": {}}', "no tool 'rm'"),
        ('{"name": "bash", "arguments": {}}', "each of these parameters once: command"),
        ('{"name": "bash", "arguments": {"command": "ls"}', "malformed"),
        ('{"name": "finish", "arguments": {}} and more', "end it with </tool_call>"),
    ],
)
def test_a_wrong_call_in_json_says_what_is_wrong(body: str, reason: str) -> None:
    with pytest.raises(CallError, match=reason):
        parse_call(f"<tool_call>\n{body}\n</tool_call>", CHAT[0].calls, TOOLS)


@every_template
@pytest.mark.parametrize("thinking", ["", "hm"])
def test_an_action_of_the_compact_grammar_reads_back_without_the_thoughts_before_it(renderer: Renderer, thinking: str) -> None:
    said = renderer.decode(renderer.answer(Answer("new a.py:\nx", thinking)))
    assert after_thinking(said) == "new a.py:\nx"


@every_template
def test_a_call_within_endless_thoughts_is_none(renderer: Renderer) -> None:
    with pytest.raises(CallError, match="the thinking does not end"):
        parse_call("<think>I could <tool_call>", renderer.calls, TOOLS)


@pytest.mark.parametrize(("preset", "kind"), [("mimo-v2-flash", MimoRenderer), ("qwen3-30b-a3b", Qwen3Renderer)])
def test_a_chat_checkpoint_gets_the_template_of_its_family(tmp_path: Path, preset: str, kind: type) -> None:
    renderer = load_renderer(write_chat_checkpoint(tmp_path, preset))
    assert isinstance(renderer, kind)
    assert renderer.stop_token_ids == tuple(PLAIN.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    assert renderer.decode([*renderer.answer(Answer("a <|im_end|>"))[:-1], renderer.stop_token_ids[1]]).endswith("a <|im_end|>")


def specials(renderer: Renderer, ids: list[int]) -> list[int]:
    tiny = isinstance(renderer, TinyRenderer)
    added = range(len(MARKERS)) if tiny else {PLAIN.token_to_id(name) for name in (*SPECIAL, *WRAPPERS)}
    return [i for i in ids if i in added]
