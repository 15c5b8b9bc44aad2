import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gagar_mcore.agent.calls import XmlCalls
from gagar_mcore.agent.compact import CompactTools
from gagar_mcore.agent.registry import tool_set
from gagar_mcore.agent.tools import ToolResult, ToolSession
from gagar_mcore.sft.demonstrations import demonstration
from gagar_mcore.tasks.generate import GeneratedTask, generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.task import Task
from gagar_mcore.tasks.write import write_task
from gagar_sandbox import Limits, LocalPool, Sandbox, SandboxSpec

GENERATED = generate_task(1, 0)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return load_task(write_task(GENERATED, tmp_path))


def in_sandbox(task: Task, use: Callable[[Sandbox], Awaitable[None]], limits: Limits | None = None) -> None:
    async def body() -> None:
        pool = LocalPool()
        try:
            await use(await pool.acquire(SandboxSpec(task.repository, task.workdir, limits=limits or Limits())))
        finally:
            await pool.close()

    asyncio.run(body())


def test_the_prompt_is_the_instruction(task: Task) -> None:
    assert CompactTools().prompt(task) == GENERATED.instruction


def test_the_sandbox_answers_as_the_demonstrations_do(tmp_path: Path) -> None:
    """The same text logic behind both: every demonstrated observation comes back, and the repair lands in the file."""

    async def play(sandbox: Sandbox, generated: GeneratedTask, task: Task, index: int) -> None:
        session = CompactTools().open(sandbox, task)
        shown = demonstration(generated, 1, index, failing=0.0, sloppy=0.6)
        for action, observation in shown.turns:
            result = await session.call(action)
            assert (result.observation, result.ok, result.finished) == (observation, True, action == "done")
        assert generated.bug.fixed in (await sandbox.read(generated.bug.file)).decode().split("\n")

    for index in range(6):
        generated = generate_task(3, index)
        task = load_task(write_task(generated, tmp_path))
        in_sandbox(task, lambda sandbox, g=generated, t=task, i=index: play(sandbox, g, t, i))  # type: ignore[misc]


def test_wrong_calls_are_observations_and_leave_the_view_as_it_was(task: Task) -> None:
    async def use(sandbox: Sandbox) -> None:
        session: ToolSession = tool_set("compact", XmlCalls()).open(sandbox, task)
        assert await session.call("edit:1:x") == ToolResult("edit", "error", ok=False)
        assert (await session.call(f"view {GENERATED.bug.file} {GENERATED.bug.function}")).ok
        for text, tool in [
            ("view gone.py f", "view"),
            ("nonsense", ""),
            ("edit:99:x", "edit"),
            ("", ""),
            ("done now", ""),
            ("<think>done", ""),
        ]:
            assert await session.call(text) == ToolResult(tool, "error", ok=False)
        assert await session.call("<think>rename</think>\n\nedit:1:def renamed(x):") == ToolResult("edit", "ok", ok=True)
        assert await session.call("edit:1:x") == ToolResult("edit", "error", ok=False)

    in_sandbox(task, use)


def test_a_file_that_is_no_text_or_too_large_is_an_error(task: Task) -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.write("binary.py", b"def f():\n\xff")
        await sandbox.write("large.py", b"def f():\n" + b"    pass\n" * 100_000)
        await sandbox.exec(["ln", "-s", "/etc", "dir.py"], timeout_s=30)
        session = CompactTools().open(sandbox, task)
        for name in ("binary.py", "large.py", "dir.py"):
            assert await session.call(f"view {name} f") == ToolResult("view", "error", ok=False)

    in_sandbox(task, use)


def test_a_write_that_the_sandbox_refuses_is_an_error_and_changes_nothing(task: Task) -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.exec(["mkdir", "notes.txt"], timeout_s=30)
        session = CompactTools().open(sandbox, task)
        assert await session.call("new notes.txt:text") == ToolResult("new", "error", ok=False)
        assert await session.call("view notes.txt f") == ToolResult("view", "error", ok=False)

    in_sandbox(task, use)


def test_an_unknown_tool_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"rollout\.tools: no tool set 'vim'"):
        tool_set("vim", XmlCalls())
