"""Sessions of any model with a chat API on tasks: messages in and out, no tokens, so nothing that could be trained on."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gagar_mcore.agent.bash import BashTools
from gagar_mcore.agent.calls import ToolCall
from gagar_mcore.agent.tools import ToolSession
from gagar_mcore.engine.chat import CHARACTERS_A_TOKEN, ChatModel, Message
from gagar_mcore.records.types import Verification
from gagar_mcore.rollout.concurrency import gather_all
from gagar_mcore.tasks.room import open_room
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import extract_patch
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox.types import Limits, SandboxLost, SandboxPool


@dataclass(frozen=True, slots=True)
class Solved:
    """One session. `end`: finished, max_turns, max_context, deadline or sandbox_lost."""

    task_id: str
    member: int
    end: str
    messages: list[Message]
    patch: str
    verification: Verification | None


@dataclass(frozen=True, slots=True)
class Solver:
    """`max_context` bounds the tokens of a session, as the server counts them, with room for one more answer; `deadline_s` its
    time, as does the task's own limit. `concurrent` sessions run at once."""

    model: ChatModel
    pool: SandboxPool
    tools: BashTools
    limits: Limits
    verifier: Verifier
    max_turns: int
    max_context: int
    deadline_s: float
    concurrent: int

    async def solve_all(self, tasks: Sequence[Task], samples: int, done: Callable[[Solved], None]) -> list[Solved]:
        """`samples` sessions of each task, in order; each is told to `done` as it ends. Raises EngineError,
        SandboxUnavailable."""
        slots = asyncio.Semaphore(self.concurrent)

        async def one(task: Task, member: int) -> Solved:
            async with slots:
                solved = await self.solve(task, member)
            done(solved)
            return solved

        return list(await gather_all(*(one(task, member) for task in tasks for member in range(samples))))

    async def solve(self, task: Task, member: int) -> Solved:
        """One session and its verification. Raises EngineError, SandboxUnavailable."""
        opening = {"system": system_prompt(self.tools), "user": self.tools.prompt(task)}
        messages = [{"role": role, "content": text} for role, text in opening.items()]
        patch = ""
        try:
            sandbox = await open_room(self.pool, task, self.limits, {})
            try:
                async with asyncio.timeout(min(self.deadline_s, task.agent_timeout_s)):
                    end = await self._turns(self.tools.open(sandbox, task), messages)
                patch = await extract_patch(sandbox, task)
            finally:
                await sandbox.close()
        except TimeoutError:
            end = "deadline"
        except SandboxLost:
            end = "sandbox_lost"
        verification = await self.verifier.verify(task, patch) if end != "sandbox_lost" else None
        return Solved(task.id, member, end, messages, patch, verification)

    async def _turns(self, session: ToolSession, messages: list[Message]) -> str:
        for _ in range(self.max_turns):
            reply = await self.model.reply(messages)
            result = await session.call(reply.text)
            messages.append({"role": "assistant", "content": reply.text})
            if result.finished:
                return "finished"
            messages.append({"role": "user", "content": result.observation or "(no output)"})
            observed = len(result.observation) // CHARACTERS_A_TOKEN
            if reply.read_tokens + reply.written_tokens + observed + self.model.max_tokens > self.max_context:
                return "max_context"
        return "max_turns"


def system_prompt(tools: BashTools) -> str:
    """What the tools are and how they are called, for a model whose template is not ours."""
    lines = ["Work on the task with these tools. Each answer ends with exactly one call, written as shown:", ""]
    for tool in tools.declared:
        example = tools.calls.write(ToolCall(tool.name, {name: f"({what})" for name, what in tool.parameters.items()}))
        lines += [f"{tool.name}: {tool.description}", f"<tool_call>{example}</tool_call>", ""]
    return "\n".join(lines)


def summary(solved: Sequence[Solved], samples: int) -> str:
    """avg@k and pass@k over tasks, and what cannot count."""
    counted = [one for one in solved if one.verification is not None and one.verification.infrastructure_error is None]
    passed = [one for one in counted if one.verification is not None and one.verification.reward == 1.0]
    tasks = {one.task_id for one in solved}
    share = len(passed) / len(counted) if counted else 0.0
    solved_tasks = len({one.task_id for one in passed})
    lost = len(solved) - len(counted)
    doubted = sum(bool(one.verification and one.verification.suspicion) for one in counted)
    return (
        f"avg@{samples} {share:.3f}, pass@{samples} {solved_tasks / len(tasks) if tasks else 0.0:.3f} on {len(tasks)} tasks; "
        f"{lost} sessions lost to the infrastructure, {doubted} reports doubted"
    )


def append(path: Path, solved: Solved) -> None:
    """One line of JSON."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(solved)) + "\n")
