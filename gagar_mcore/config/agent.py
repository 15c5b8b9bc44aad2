"""The recipe section of the agent: which program uses the policy as its model."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from gagar_mcore.config.base import Section
from gagar_mcore.config.rollout import Positive, Seconds


class AgentSection(Section):
    """`builtin`: our own agent, with the tools of `rollout.tools`. `command`: any program, run in the session's sandbox, that
    asks the policy through the session proxy, see docs/agents.md; in its words `{instruction}` and `{workdir}` stand for the
    task's. `mounts`: what it needs of this machine, read-only, by its place in the sandbox. `apart`: it runs in a sandbox of its
    own, and an adapter gives its commands to that of the task. It may keep `concurrent_calls` at work, send so many bytes a
    request and a session, and have the contexts of all its conversations come to `max_session_tokens`; once its session is over,
    it has `grace_s` to end."""

    kind: Literal["builtin", "command"] = "builtin"
    command: tuple[str, ...] = ()
    mounts: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    apart: bool = False
    grace_s: Seconds = 10.0
    concurrent_calls: Positive = 1
    max_request_bytes: Positive = 4 << 20
    max_session_bytes: Positive = 256 << 20
    max_session_tokens: Positive = 4 << 20

    def contradictions(self, deterministic: bool) -> Iterator[str]:
        if self.kind == "builtin" and (self.command or self.mounts or self.environment):
            yield "agent.command, mounts, environment: have no effect on our own agent; set agent.kind=command, or leave them out"
        if self.kind == "command" and not self.command:
            yield "agent.command: names no program; give its words"
        if self.kind == "command" and deterministic:
            yield "agent.kind: command does not repeat itself bit by bit; set agent.kind=builtin, or deterministic to false"
