"""An agent that is not ours: its command, and what it finds when it runs in a sandbox."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gagar_mcore.agent.proxy.limits import ProxyLimits
from gagar_mcore.agent.proxy.recorder import Recorder
from gagar_mcore.tasks.task import Task
from gagar_sandbox import forwarding
from gagar_sandbox.types import ExecResult, Sandbox

SOCKET_FOLDER = "/proxy"  # in the sandbox
SOCKET = "model.sock"
PORT = 8000


@dataclass(frozen=True, slots=True)
class OutsideAgent:
    """`command`: its words, in which `{instruction}` and `{workdir}` stand for the task's; the instruction is on its standard
    input too. `mounts`: what it needs from this machine, by its place in the sandbox, read-only. It runs in the sandbox of the
    task, or, where it is `apart`, in one of its own, from which it gives commands of at most `command_timeout_s` to that of the
    task. `grace_s`: the time that it has to end once its session is over."""

    command: tuple[str, ...]
    mounts: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    bounds: ProxyLimits = field(default_factory=ProxyLimits)
    grace_s: float = 10.0
    apart: bool = False
    command_timeout_s: float = 10.0

    async def work(self, sandbox: Sandbox, task: Task, recorder: Recorder, secret: str, timeout_s: float) -> ExecResult | None:
        """What its command came to; None where it had to be stopped after the end of its session."""
        words = [word.replace("{instruction}", task.instruction).replace("{workdir}", task.workdir) for word in self.command]
        command = forwarding(f"{SOCKET_FOLDER}/{SOCKET}", PORT, words)
        environment = {**addresses(secret, self.apart), **self.environment}
        stdin = task.instruction.encode(errors="replace")
        running = asyncio.create_task(sandbox.exec(command, timeout_s=timeout_s, stdin=stdin, env=environment))
        over = asyncio.create_task(recorder.ended.wait())
        try:
            await asyncio.wait({running, over}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({running}, timeout=self.grace_s)
        finally:
            over.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
        recorder.end("the agent has ended")
        return None if running.cancelled() else running.result()


def addresses(secret: str, apart: bool) -> dict[str, str]:
    """The variables by which clients of either API find their model, and an agent that runs apart its workspace."""
    root = f"http://127.0.0.1:{PORT}"
    workspace = {"WORKSPACE_URL": f"{root}/workspace/exec", "WORKSPACE_KEY": secret}
    return (workspace if apart else {}) | {
        "OPENAI_BASE_URL": f"{root}/v1",
        "OPENAI_API_BASE": f"{root}/v1",
        "OPENAI_API_KEY": secret,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": secret,
    }
