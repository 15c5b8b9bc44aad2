"""Commands of an agent that runs apart from the task: they go into the task's sandbox, and nowhere else."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from gagar_mcore.agent.proxy.api import Body, parsed
from gagar_mcore.agent.proxy.conversation import invalid
from gagar_sandbox.types import ExecResult, Sandbox

OUTPUT_BYTES = 1 << 16
SCRIPT = 'cd -- "$1" && exec 2>&1 && eval "$2"'


class Command(Body):
    """`cwd`: "" is the workdir of the task. `timeout_s` can only shorten the recipe's."""

    command: str
    cwd: str = ""
    timeout_s: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """The sandbox of the task. `timeout_s` bounds one command."""

    sandbox: Sandbox
    workdir: str
    timeout_s: float

    async def run(self, body: bytes) -> dict[str, object]:
        """What the command printed, its exit code, and how it ended: `exited`, `timed_out`, `out_of_memory`. Raises Refused,
        SandboxLost."""
        asked = parsed(Command, body)
        words = ["bash", "-c", SCRIPT, "bash", asked.cwd or self.workdir, asked.command]
        timeout_s = min(asked.timeout_s or self.timeout_s, self.timeout_s)
        if any("\0" in word for word in words):
            raise invalid("command, cwd: hold a NUL")
        result: ExecResult = await self.sandbox.exec(words, timeout_s=timeout_s, output_limit=OUTPUT_BYTES)
        output = (result.stdout + result.stderr).decode(errors="replace")  # the latter only where it could not be started
        return {"output": output, "exit_code": result.exit_code, "outcome": result.outcome}
