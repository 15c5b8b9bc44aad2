"""What is imported and exported again is what the source holds, for every format."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imported_samples import CALL, MINI_SWE_AGENT, ODD, OPENAI, RESPONSES, SWE_AGENT

from gagar_mcore.integrations.imports.chat import chat_data
from gagar_mcore.integrations.imports.command import import_files
from gagar_mcore.integrations.imports.data import SourceError
from gagar_mcore.integrations.imports.formats import export_data, import_data
from gagar_mcore.integrations.imports.read import read_trajectories
from gagar_mcore.records.imported import ImportedTrajectory, Source, ToolCall, read_imported
from gagar_mcore.records.serialize import from_plain, to_plain

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "trajectories"
SAMPLES = [
    ("swe-agent", SWE_AGENT),
    ("mini-swe-agent", MINI_SWE_AGENT),
    ("mini-swe-agent", MINI_SWE_AGENT["messages"]),
    ("mini-swe-agent", RESPONSES),
    *(("openai", line) for line in OPENAI),
]


def content(data: Any) -> str:
    """One text for equal JSON: 0 and 0.0, null and absent differ in it, the order of keys does not."""
    return json.dumps(data, sort_keys=True)


def read(data: Any, kind: str) -> ImportedTrajectory:
    return import_data(data, kind, Source("f", None, ""), "id", "task")


def stored(record: ImportedTrajectory) -> ImportedTrajectory:
    return from_plain(ImportedTrajectory, json.loads(json.dumps(to_plain(record))))


@pytest.mark.parametrize(("kind", "data"), SAMPLES)
def test_nothing_of_a_source_is_lost(kind: str, data: Any) -> None:
    before = content(data)
    assert content(export_data(stored(read(data, kind)))) == before
    assert content(data) == before


@pytest.mark.parametrize("name", ["marshmallow-1867.function_calling.traj", "marshmallow-1867.replace.traj"])
def test_a_real_file_with_tool_calls(name: str) -> None:
    if not REAL.is_dir():
        pytest.skip("the sample of real trajectories is not at hand")
    (record,) = read_trajectories([REAL / name])
    calls = [call for message in record.messages for call in message.tool_calls]
    answers = [id for message in record.messages for id in message.answers]
    assert (len(record.messages), len(record.steps), len(calls)) == (24, 11, 11)
    assert answers == [call.id for call in calls]
    assert record.patch.startswith("\r\ndiff --git a/src/marshmallow/fields.py")
    assert (record.exit_status, record.task_id) == ("submitted", name.removesuffix(".traj"))


def test_real_files_come_back_whole(tmp_path: Path) -> None:
    if not REAL.is_dir():
        pytest.skip("the sample of real trajectories is not at hand")
    refused: list[str] = []
    counts = import_files([REAL], tmp_path / "out.jsonl", "records", None, 10**8, refused.append)
    assert (counts.imported, refused) == (len(list(REAL.iterdir())), [])
    for record in read_imported(tmp_path / "out.jsonl"):
        assert content(export_data(record)) == content(json.loads(Path(record.source.file).read_text())), record.source.file


def test_each_part_has_its_place() -> None:
    record = read(SWE_AGENT, "swe-agent")
    assert (record.patch, record.exit_status, record.task_id) == ("diff --git a b\r\n", "submitted", "task")
    assert [(step.action, step.observation, step.thought, step.seconds) for step in record.steps] == [
        ("ls", ODD, "look", 0.25),
        ("submit", "", "", 0),
    ]
    call = ToolCall("bash", '{"command": "ls"}', "c1", {"type": "function", "index": 0, "function": {"strict": True}})
    assert [message.tool_calls for message in record.messages] == [[], [], [call], [], []]
    assert [message.thought for message in record.messages] == [None, None, "look", None, ""]
    assert [message.answers for message in record.messages] == [[], [], [], ["c1"], []]
    assert record.extra["info"] == {"model_stats": {"api_calls": 2, "instance_cost": 0}}


def test_parts_of_other_formats_have_the_same_places() -> None:
    mini, line = read(MINI_SWE_AGENT, "mini-swe-agent"), read(OPENAI[0], "openai")
    assert (mini.patch, mini.exit_status, mini.task_id) == ("patch\n", "Submitted", "django__django-1")
    assert (mini.messages[2].thought, mini.messages[2].tool_calls[0].name, mini.messages[3].answers) == ("hm", "bash", ["c1"])
    assert (line.patch, line.exit_status, line.task_id) == (ODD, None, "t-1")
    assert [(call.name, call.arguments, call.id) for call in line.messages[2].tool_calls] == [
        ("apply", "*** Begin Patch", "c2"),
        ("f", {"n": 1}, None),
    ]


def test_items_of_the_responses_api_are_messages() -> None:
    _, said, answer, asked = read(RESPONSES, "mini-swe-agent").messages
    assert (said.role, said.content, said.thought) == ("assistant", "I look", "hm")
    assert said.tool_calls == [ToolCall("bash", "{}", "c1")]
    assert (answer.role, answer.content, answer.answers) == ("tool", "a.py", ["c1"])
    assert (asked.role, asked.content[0]["text"]) == ("user", "go on")


def test_chat_messages_are_what_a_template_takes() -> None:
    swe = chat_data(read(SWE_AGENT, "swe-agent"))
    assert swe["messages"][1:4] == [
        {"role": "user", "content": "issue"},
        {"role": "assistant", "content": "look", "tool_calls": [CALL]},
        {"role": "tool", "content": ODD, "tool_call_id": "c1"},
    ]
    mini = chat_data(read(MINI_SWE_AGENT, "mini-swe-agent"))["messages"]
    assert [message["role"] for message in mini] == ["system", "user", "assistant", "tool"]
    assert mini[2] == {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]}
    said = chat_data(read(RESPONSES, "mini-swe-agent"))["messages"][1]
    assert said["tool_calls"] == [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
    assert chat_data(read(RESPONSES, "mini-swe-agent"))["messages"][3] == {"role": "user", "content": "go on"}
    line, bare = (chat_data(read(line, "openai")) for line in OPENAI)
    assert line["tools"] == OPENAI[0]["tools"]
    assert line["messages"][1]["content"] == OPENAI[0]["messages"][1]["content"]
    assert [message.get("tool_calls") for message in line["messages"]][2] == OPENAI[0]["messages"][2]["tool_calls"]
    assert bare["messages"] == OPENAI[1]


def test_a_message_that_answers_two_calls_is_no_chat_message() -> None:
    data = copy.deepcopy(SWE_AGENT)
    data["history"][3]["tool_call_ids"] = ["c1", "c2"]
    with pytest.raises(SourceError, match=r"^messages\[3\]: answers 2 tool calls"):
        chat_data(read(data, "swe-agent"))


@pytest.mark.parametrize(
    ("kind", "path", "value", "message"),
    [
        ("swe-agent", ["history"], None, "history: must be a list, got null"),
        ("swe-agent", ["trajectory", 1], "x", 'trajectory[1]: must be an object, got "x"'),
        ("swe-agent", ["trajectory", 0, "action"], 3, "trajectory[0].action: must be text, got 3"),
        ("swe-agent", ["info"], [], "info: must be an object, got a list"),
        ("swe-agent", ["history", 2, "tool_calls"], "ls", 'history[2].tool_calls: must be a list, got "ls"'),
        ("swe-agent", ["history", 1, "content", 0], "t", 'history[1].content[0]: must be an object, got "t"'),
        ("mini-swe-agent", ["messages", 0, "role"], "bot", "messages[0].role: must be one of system, developer, user, "),
        ("mini-swe-agent", ["messages", 1, "content"], {}, "messages[1].content: must be text, got an object"),
        (
            "mini-swe-agent",
            ["messages", 2, "tool_calls", 0, "function"],
            None,
            "messages[2].tool_calls[0].function: must be an obj",
        ),
        (
            "mini-swe-agent",
            ["messages", 2, "tool_calls", 0, "function", "name"],
            1,
            "messages[2].tool_calls[0].function.name: must",
        ),
        (
            "openai",
            ["messages", 2, "tool_calls", 0, "custom", "input"],
            1,
            "messages[2].tool_calls[0].custom.input: must be text",
        ),
        ("openai", ["messages", 3], None, "messages[3]: must be an object, got null"),
    ],
)
def test_what_cannot_be_read_is_named(kind: str, path: list[Any], value: Any, message: str) -> None:
    data = copy.deepcopy({"swe-agent": SWE_AGENT, "mini-swe-agent": MINI_SWE_AGENT, "openai": OPENAI[0]}[kind])
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(SourceError) as refused:
        read(data, kind)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("swe-agent", {"history": []}, "trajectory: required and missing"),
        ("swe-agent", {"trajectory": [{"action": "ls"}], "history": []}, "trajectory[0].observation: required and missing"),
        ("swe-agent", [], "must be an object, got a list"),
        ("mini-swe-agent", {"info": {}}, "messages: required and missing"),
        ("openai", [{"content": "x"}], "messages[0].role: required and missing"),
        ("openai", [{"role": "user"}], "messages[0].content: required and missing"),
        ("mini-swe-agent", [{"object": "response"}], "messages[0].output: required and missing"),
        ("mini-swe-agent", [{"type": "function_call_output", "output": ""}], "messages[0].call_id: required and missing"),
    ],
)
def test_what_is_missing_is_named(kind: str, data: Any, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        read(data, kind)
    assert str(refused.value) == message


TEXTS = st.text(st.characters(), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every container in `data` with each of its keys."""
    keys = data.keys() if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    return [(data, key) for key in keys] + [place for key in keys for place in places(data[key])]


@given(st.sampled_from(SAMPLES), st.randoms(use_true_random=False), st.lists(VALUES, min_size=1, max_size=4), TEXTS)
def test_a_changed_source_is_refused_or_comes_back_as_it_is(
    sample: Any, rng: random.Random, values: list[Any], name: str
) -> None:
    kind, data = copy.deepcopy(sample)
    for value in values:
        place, key = rng.choice(places(data))
        if isinstance(place, dict) and rng.random() < 0.5:
            place[name] = value
        elif rng.random() < 0.5:
            del place[key]
        else:
            place[key] = value
        if not places(data):
            return
    try:
        record = read(data, kind)
    except SourceError:
        return
    assert content(export_data(stored(record))) == content(data)
