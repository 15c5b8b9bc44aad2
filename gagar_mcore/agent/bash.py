"""Tools of real models: bash, str_replace and finish, called as the model's family writes calls."""

from dataclasses import dataclass, field

from gagar_mcore.agent.calls import CallFormat, Tool, ToolCall, XmlCalls, parse_call
from gagar_mcore.agent.tools import ToolResult
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import ExecResult, Sandbox

MAX_OBSERVATION_BYTES = 16_384
MAX_EDIT_BYTES = 1 << 20

TOOLS = (
    Tool("bash", "Runs a command in the repository and shows what it prints.", {"command": "the command"}),
    Tool(
        "str_replace",
        "Replaces a text that occurs exactly once in a file; with an empty old text it creates the file.",
        {"path": "the file", "old": "the text to replace", "new": "the text to put in its place"},
    ),
    Tool("finish", "Ends the session and submits the changes."),
)

_PROMPT = """\
{instruction}

The repository is in {workdir}. Work in it with the tools bash, str_replace and finish, one call in each answer."""


@dataclass(frozen=True, slots=True)
class BashTools:
    """`timeout_s` bounds one command."""

    timeout_s: float = 10.0
    calls: CallFormat = field(default_factory=XmlCalls)

    @property
    def declared(self) -> tuple[Tool, ...]:
        return TOOLS

    def prompt(self, task: Task) -> str:
        return _PROMPT.format(instruction=task.instruction, workdir=task.workdir)

    def open(self, sandbox: Sandbox, task: Task) -> "BashSession":
        return BashSession(sandbox, self.timeout_s, self.calls)


@dataclass(frozen=True, slots=True)
class BashSession:
    sandbox: Sandbox
    timeout_s: float
    calls: CallFormat

    async def call(self, text: str) -> ToolResult:
        name = ""
        try:
            call = parse_call(text, self.calls, TOOLS)
            name = call.name
            return await self._carry_out(call)
        except (OSError, ValueError) as error:
            return ToolResult(name, f"error: {error}", ok=False)

    async def _carry_out(self, call: ToolCall) -> ToolResult:
        match call.name:
            case "bash":
                return await self._bash(call.arguments["command"])
            case "str_replace":
                return ToolResult("str_replace", await self._replace(**call.arguments), ok=True)
            case _:
                return ToolResult("finish", "", ok=True, finished=True)

    async def _bash(self, command: str) -> ToolResult:
        script = ["bash", "-c", 'exec 2>&1; eval "$1"', "bash", command]
        result = await self.sandbox.exec(script, timeout_s=self.timeout_s, output_limit=MAX_OBSERVATION_BYTES)
        return ToolResult("bash", _observation(result, self.timeout_s), ok=result.outcome == "exited")

    async def _replace(self, path: str, old: str, new: str) -> str:
        if not old:
            await self.sandbox.write(path, new.encode())
            return f"{path} written"
        text = (await self.sandbox.read(path, MAX_EDIT_BYTES)).decode()
        if (count := text.count(old)) != 1:
            raise ValueError(f"the old text occurs {count} times in {path}; it must occur once")
        await self.sandbox.write(path, text.replace(old, new).encode())
        return f"{path} changed"


def _observation(result: ExecResult, timeout_s: float) -> str:
    notes = []
    if result.output_truncated:
        notes.append(f"[output longer than {MAX_OBSERVATION_BYTES} bytes: its middle was left out]")
    if result.outcome == "timed_out":
        notes.append(f"[stopped after {timeout_s:g} s]")
    elif result.outcome == "out_of_memory":
        notes.append("[stopped: out of memory]")
    elif result.exit_code != 0:
        notes.append(f"[exit code {result.exit_code}]")
    printed = result.stdout + result.stderr  # the latter only of a command that could not be started: one that is too long, say
    return "\n".join(filter(None, [printed.decode(errors="replace").rstrip("\n"), *notes]))
