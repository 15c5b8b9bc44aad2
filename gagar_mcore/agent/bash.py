"""Tools of real models: bash, str_replace and finish, called in the format of MiMo models.

<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>
"""

import re
from dataclasses import dataclass

from gagar_mcore.agent.tools import ToolResult
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import ExecResult, Sandbox

MAX_OBSERVATION_BYTES = 16_384
MAX_EDIT_BYTES = 1 << 20

_CALL = re.compile(r"<tool_call>\s*<function=(\w{1,32})>(.*?)</function>\s*</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(\w{1,32})>(.*?)</parameter>", re.DOTALL)

_PARAMETERS = {"bash": {"command"}, "str_replace": {"path", "old", "new"}, "finish": set[str]()}

_INSTRUCTIONS = """\
{instruction}

The repository is in {workdir}. Work in it with these tools, one call in each answer:

<tool_call><function=bash><parameter=command>COMMAND</parameter></function></tool_call>
runs a command in {workdir} and shows what it prints.

<tool_call><function=str_replace><parameter=path>FILE</parameter><parameter=old>TEXT</parameter>\
<parameter=new>TEXT</parameter></function></tool_call>
replaces a text that occurs exactly once in a file; with an empty old text it creates the file.

<tool_call><function=finish></function></tool_call>
ends the session and submits the changes."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, str]


class CallError(ValueError):
    """A text that is no valid call; the message is shown to the policy."""


def parse_call(text: str) -> ToolCall:
    """The one tool call in a text; what stands before it is the policy's own thinking. Raises CallError."""
    if (count := text.count("<tool_call>")) != 1:
        raise CallError(f"found {count} tool calls; make exactly one")
    call = _CALL.search(text)
    if call is None:
        raise CallError("the tool call is malformed; write <tool_call><function=NAME>...</function></tool_call>")
    name, body = call.groups()
    if name not in _PARAMETERS:
        raise CallError(f"no tool {name!r}; there are {', '.join(_PARAMETERS)}")
    found = _PARAMETER.findall(body)
    arguments = {key: _unpadded(value) for key, value in found}
    if set(arguments) != _PARAMETERS[name] or len(found) != len(arguments):
        raise CallError(f"{name} takes each of these parameters once: {', '.join(sorted(_PARAMETERS[name])) or 'none'}")
    return ToolCall(name, arguments)


@dataclass(frozen=True, slots=True)
class BashTools:
    """`timeout_s` bounds one command."""

    timeout_s: float = 10.0

    def prompt(self, task: Task) -> str:
        return _INSTRUCTIONS.format(instruction=task.instruction, workdir=task.workdir)

    def open(self, sandbox: Sandbox, task: Task) -> "BashSession":
        return BashSession(sandbox, self.timeout_s)


@dataclass(frozen=True, slots=True)
class BashSession:
    sandbox: Sandbox
    timeout_s: float

    async def call(self, text: str) -> ToolResult:
        name = ""
        try:
            call = parse_call(text)
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


def _unpadded(value: str) -> str:
    """The format puts one line break on each side of a long value."""
    return value.removeprefix("\n").removesuffix("\n")


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
    return "\n".join(filter(None, [result.stdout.decode(errors="replace").rstrip("\n"), *notes]))
