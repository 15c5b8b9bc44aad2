import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.agent.bash import MAX_OBSERVATION_BYTES, TOOLS, BashTools
from gagar_mcore.agent.calls import CallError, ToolCall, XmlCalls
from gagar_mcore.agent.calls import parse_call as parse_any_call
from gagar_mcore.agent.tools import ToolResult
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.write import write_task
from gagar_sandbox import Limits, LocalPool, Sandbox, SandboxSpec


def parse_call(text: str) -> ToolCall:
    return parse_any_call(text, XmlCalls(), TOOLS)


def call(name: str, **parameters: str) -> str:
    body = "".join(f"<parameter={key}>{value}</parameter>" for key, value in parameters.items())
    return f"<tool_call><function={name}>{body}</function></tool_call>"


def play(tmp_path: Path, *texts: str, timeout_s: float = 30.0) -> tuple[list[ToolResult], dict[str, bytes]]:
    """Results of the calls, and the files `made` and `core` afterwards, where they are."""

    async def body() -> tuple[list[ToolResult], dict[str, bytes]]:
        task = load_task(write_task(generate_task(1, 0), tmp_path))
        pool = LocalPool()
        try:
            sandbox = await pool.acquire(SandboxSpec(task.repository, task.workdir, limits=Limits()))
            session = BashTools(timeout_s).open(sandbox, task)
            return [await session.call(text) for text in texts], await _files(sandbox, "made", "core")
        finally:
            await pool.close()

    return asyncio.run(body())


async def _files(sandbox: Sandbox, *names: str) -> dict[str, bytes]:
    found = {}
    for name in names:
        try:
            found[name] = await sandbox.read(name)
        except FileNotFoundError:
            continue
    return found


def test_a_call_is_parsed_after_whatever_was_thought() -> None:
    parameter = "<parameter=command>ls -l\necho\n</parameter>\n"
    text = f"<think>hm</think>\n<tool_call>\n<function=bash>\n{parameter}\n</function>\n</tool_call>"
    assert parse_call(text) == ToolCall("bash", {"command": "ls -l\necho\n"})
    assert parse_call(call("finish")) == ToolCall("finish", {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ls", "found 0 tool calls"),
        (call("finish") * 2, "found 2 tool calls"),
        ("<tool_call><function=bash></tool_call>", "malformed"),
        (call("rm"), "no tool 'rm'"),
        (call("bash"), "each of these parameters once: command"),
        (call("bash", command="a", extra="b"), "each of these parameters once: command"),
        (call("finish", now="1"), "once: none"),
        (call("bash", command="a</parameter><parameter=command>b"), "each of these parameters once"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(CallError, match=reason):
        parse_call(text)


@given(st.lists(st.sampled_from(["<tool_call>", "<function=bash>", "<parameter=command>", "</parameter>", "</function>", "x"])))
def test_any_text_is_a_call_or_a_call_error(parts: list[str]) -> None:
    try:
        found: Any = parse_call("".join(parts) + "</tool_call>")
    except CallError:
        return
    assert found.name == "bash" and set(found.arguments) == {"command"}


def test_bash_shows_output_and_exit_code_and_stays_in_the_workdir(tmp_path: Path) -> None:
    results, files = play(
        tmp_path, call("bash", command="pwd; echo oops >&2; echo text > made; exit 3"), call("bash", command="true")
    )
    assert results[0] == ToolResult("bash", "/app\noops\n[exit code 3]", ok=True)
    assert results[1] == ToolResult("bash", "", ok=True)
    assert files == {"made": b"text\n"}


def test_long_output_is_cut_and_says_so(tmp_path: Path) -> None:
    [result], _ = play(tmp_path, call("bash", command="yes | head -c 200000"))
    assert len(result.observation) < MAX_OBSERVATION_BYTES + 200
    assert result.observation.endswith(f"[output longer than {MAX_OBSERVATION_BYTES} bytes: its middle was left out]")


def test_a_command_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    [result], _ = play(tmp_path, call("bash", command="true #" + "x" * 200_000))
    assert result.observation == "bash: Argument list too long\n[exit code 126]"


def test_a_command_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    [result, after], _ = play(
        tmp_path, call("bash", command="echo begun; sleep 60"), call("bash", command="echo on"), timeout_s=1.0
    )
    assert result == ToolResult("bash", "begun\n[stopped after 1 s]", ok=False)
    assert after.observation == "on"


def test_str_replace_changes_one_place_and_makes_files(tmp_path: Path) -> None:
    results, files = play(
        tmp_path,
        call("str_replace", path="made", old="", new="one two one\n"),
        call("str_replace", path="made", old="two", new="2"),
        call("str_replace", path="made", old="one", new="1"),
        call("str_replace", path="made", old="three", new="3"),
        call("str_replace", path="gone", old="a", new="b"),
        call("str_replace", path="/usr/made", old="", new="b"),
        call("str_replace", path="a\0b", old="", new="b"),
    )
    assert [result.ok for result in results] == [True, True, False, False, False, False, False]
    assert "occurs 2 times" in results[2].observation and "occurs 0 times" in results[3].observation
    assert files == {"made": b"one 2 one\n"}


def test_finish_ends_and_wrong_calls_do_not(tmp_path: Path) -> None:
    results, _ = play(tmp_path, "hello", call("bash", command="a\0b"), call("bash", command="\ud800"), call("finish"))
    assert [(result.ok, result.finished) for result in results] == [(False, False)] * 3 + [(True, True)]
    assert results[0].observation.startswith("error: found 0 tool calls")
