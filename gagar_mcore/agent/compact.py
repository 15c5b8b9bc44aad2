"""The compact tools of small policies, carried out in a sandbox."""

from gagar_mcore.agent.calls import CallError, Tool, after_thinking
from gagar_mcore.agent.grammar import (
    MAX_FILE_CHARACTERS,
    Action,
    Change,
    Create,
    Done,
    Effect,
    Show,
    View,
    apply,
    file_needed,
    parse,
)
from gagar_mcore.agent.tools import ToolResult
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import Sandbox

ERROR = "error"
MAX_FILE_BYTES = 4 * MAX_FILE_CHARACTERS


class CompactTools:
    """The tool set of `agent.grammar`; the prompt is the task's instruction and nothing else."""

    declared: tuple[Tool, ...] = ()

    def prompt(self, task: Task) -> str:
        return task.instruction

    def open(self, sandbox: Sandbox, task: Task) -> "CompactSession":
        return CompactSession(sandbox)


class CompactSession:
    """Remembers the function last viewed, and the text of each file it has read or written: nothing else writes there."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._view: View | None = None
        self._files: dict[str, str] = {}

    async def call(self, text: str) -> ToolResult:
        action = _action(text)
        if action is None:
            return ToolResult("", ERROR, ok=False)
        name = _name(action)
        try:
            effect = await self._carry_out(action)
        except (OSError, UnicodeError):
            effect = None
        if effect is None:
            return ToolResult(name, ERROR, ok=False)
        self._view = effect.view
        return ToolResult(name, effect.observation, ok=True, finished=isinstance(action, Done))

    async def _carry_out(self, action: Action) -> Effect | None:
        needed = file_needed(action, self._view)
        if needed is not None and needed not in self._files:
            self._files[needed] = (await self._sandbox.read(needed, MAX_FILE_BYTES)).decode()
        effect = apply(action, self._view, self._files)
        if effect is not None and effect.file is not None:
            await self._sandbox.write(effect.file, effect.text.encode())
            self._files[effect.file] = effect.text
        return effect


def _action(text: str) -> Action | None:
    try:
        return parse(after_thinking(text))
    except CallError:
        return None


def _name(action: Action) -> str:
    match action:
        case Show():
            return "view"
        case Change(insert):
            return "add" if insert else "edit"
        case Create():
            return "new"
        case Done():
            return "done"
