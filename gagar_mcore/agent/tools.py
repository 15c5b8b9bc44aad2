"""Tool sets: how a policy's free text becomes an action in the sandbox."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gagar_mcore.agent.calls import Tool
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import Sandbox


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`tool` is "" where the text was no valid call; `ok` is False for a malformed or refused call; `finished` ends it all."""

    tool: str
    observation: str
    ok: bool
    finished: bool = False


class ToolSession(Protocol):
    """Tools bound to one sandbox; may remember state between calls (the file last viewed, say)."""

    async def call(self, text: str) -> ToolResult:
        """Parse and carry out one action. A wrong call is an observation, never an exception;
        SandboxLost passes through."""


class ToolSet(Protocol):
    @property
    def declared(self) -> Sequence[Tool]:
        """The tools that the template must describe; none where the policy knows its actions already."""

    def prompt(self, task: Task) -> str:
        """The user message that opens a session."""

    def open(self, sandbox: Sandbox, task: Task) -> ToolSession: ...
